"""FC2 tables: whole where there is room, still tables on 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kclab.cli.fc2_checks import COMPARE_COLUMNS, VERIFY_COLUMNS
from kclab.cli.fc2_history import BEFORE, REST, TREND, WHAT
from kclab.cli.fc2_show import BEST_COLUMNS, PARETO_COLUMNS, RESULT_COLUMNS, SCOPE, with_text
from kclab.cli.output import Column, Format, print_rows
from kclab.fc2.explain import STAGES
from kclab.fc2.export import c_function

ROW = with_text(
    {
        "workload": "c378836a-0195-5a42-bcea-cecbcbc43943",
        "m": 37_810,
        "n": 5376,
        "k": 14_336,
        "precision": "fp8_e4m3",
        "fast_accumulation": 1,
        "config": "66:197:36:1:0:0:2:0:5",
        "ratio": 1.363,
        "ratio_low": 1.36,
        "ratio_high": 1.37,
        "verdict": "UNDECIDED",
        "exact": 0,
        "different": 203_266_560,
        "required_workspace": 67_108_864,
        "a_ms": 4.481,
        "b0_ms": 4.416,
        "b_ms": 4.293,
        "wrapper_ratio": 1.01,
        "drift": 0.0,
        "gates": "not gated",
        "gpu": "NVIDIA H200",
        "kernel": "nvjet",
        "measured_us": 0,
        "run": "01a22e09-f5bb-76f2-873f-1f92a7031645",
        "result_id": 61,
    }
)


WIDE = {
    **ROW,
    "shape": "4096x5376x5376",
    "gates": "gated",
    "parity": "exact",
    "verdict": "FAST",
    "scope": "producer+gemm",
    "budget": 67_108_864,
    "told_gain": "+10.5 % (+10.1 … +10.8)",
    "trend": "SAME",
    "first_ratio": 1.1,
    "second_ratio": 1.1,
    "change": 1.01,
    "moved": ["driver: 580 here, 590 stored"],
    "reasons": ["its bytes are no longer the baseline's"],
    "measured_us": 1_700_000_000_000_000,
    "gain": 1.1,
}
"""As on an H200, in every table that shows it."""

EXACT = {**ROW, "exact": 1, "different": 0, "parity": "exact"}


def lines(capsys: pytest.CaptureFixture[str], row: Mapping[str, Any] = ROW) -> list[str]:
    print_rows([row], RESULT_COLUMNS, Format.TABLE)
    return capsys.readouterr().out.splitlines()


def test_80_columns_keep_shape_config_gain_verdict_and_parity(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, _, row = lines(capsys, EXACT)
    assert head.split() == ["shape", "dtype", "config", "gain", "verdict", "parity"]
    assert len(row) <= 80 and row.split()[:2] == ["37810x5376x14336", "fp8+fast"]


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (BEST_COLUMNS, {"shape", "config", "gain", "verdict", "parity", "gates"}),
        (PARETO_COLUMNS, {"budget", "shape", "dtype", "config", "gain", "verdict"}),
        ((*WHAT, SCOPE, BEFORE, *TREND, *REST), {"measured", "gain", "scope", "trend", "verdict"}),
        (COMPARE_COLUMNS, {"config", "scope", "faster by"}),
        (VERIFY_COLUMNS, {"config", "holds", "gain now", "moved"}),
    ],
)
def test_what_results_are_chosen_by_fits_in_80_columns(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: tuple[Column, ...],
    kept: set[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row: dict[str, Any] = {**dict.fromkeys(column.key for column in columns), **WIDE}
    print_rows([row], columns, Format.TABLE)
    head, rule, row_line = capsys.readouterr().out.splitlines()
    titles = {title.strip() for title in head.split("  ")}
    assert kept <= titles and len(rule) <= 80 and len(row_line) <= 80


def test_a_failed_parity_is_told_whole_however_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, _, row = lines(capsys)
    assert head.split() == ["config", "gain", "verdict", "parity"]
    assert row.endswith("parity failed (203266560 elements)") and len(row) <= 80


def test_more_columns_come_with_more_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    head, _, row = lines(capsys, EXACT)
    assert {"workload", "workspace", "gpu"} <= set(head.split()) and len(row) <= 120


def test_a_pipe_gets_the_whole_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    head, _, row = lines(capsys)
    assert "parity failed (203266560 elements)" in row and "not gated" in row
    shown = [column.title for column in RESULT_COLUMNS if not column.hidden]
    assert all(title in head for title in shown)


def test_where_nothing_fits_every_field_has_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    names = [line.split("  ")[0] for line in lines(capsys)]
    assert names == [column.title for column in RESULT_COLUMNS if not column.hidden]


def test_stages_are_read_from_the_kernels_name() -> None:
    found = STAGES.search("nvjet_sm90_qqtst_168x128_128x5_1x2_h_bz_TNN")
    assert found and found.groups() == ("128", "5")


def test_c_code_names_the_operands_types() -> None:
    code = " ".join(c_function({**ROW, "cublaslt": "130100"}).split())
    assert "CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_16BF, 66, algo" in code
