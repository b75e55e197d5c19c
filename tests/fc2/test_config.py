"""How an algorithm config is written and read."""

from __future__ import annotations

import json

import pytest

from kclab.core.errors import BadUsage
from kclab.fc2.config import NAMES, AlgorithmConfig, config_from_json, parse_config

CONFIG = AlgorithmConfig(66, 600, 36, 2, 4, 1, 3, 0, 5)


def test_text_form_comes_back() -> None:
    assert parse_config(CONFIG.text) == CONFIG == parse_config("66:600:36:2:4:1:3:0:5")


def test_json_form_comes_back() -> None:
    assert parse_config(json.dumps(CONFIG.to_json())) == CONFIG


def test_json_names_are_the_seed_files_names() -> None:
    assert set(NAMES) == {
        "algorithm_id",
        "tile_id",
        "stages_id",
        "split_k",
        "reduction_scheme",
        "custom_option",
        "cta_swizzle",
        "inner_shape",
        "cluster_shape",
    }


def test_json_result_row_with_other_keys_is_read() -> None:
    row = {**CONFIG.to_json(), "required_workspace_bytes": 4, "valid": True}
    assert config_from_json(row) == CONFIG


def test_missing_numbers_take_their_defaults() -> None:
    assert config_from_json({"algorithm_id": 66}) == AlgorithmConfig(66)
    assert AlgorithmConfig(66).split_k == 1


@pytest.mark.parametrize("text", ["66", "66:1:2", "a:0:0:1:0:0:0:0:0", "{", '{"tile_id": 3}', ""])
def test_what_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="algorithm config"):
        parse_config(text)


@pytest.mark.parametrize("value", [1.5, True])
def test_a_number_that_is_not_whole_is_refused(value: object) -> None:
    with pytest.raises(BadUsage, match="tile_id"):
        config_from_json({"algorithm_id": 66, "tile_id": value})
