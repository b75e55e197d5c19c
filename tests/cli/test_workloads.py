"""`kclab workloads` lists inputs by content and shows what they gave."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from kclab.db.store import Store
from tests.cli.conftest import Golden
from tests.cli.sample import ACTIVATION, BODY, CAPTURE_A, CAPTURE_B, WEIGHT, WORKLOADS
from tests.conftest import Cli


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("workloads_list.txt", ["list"]),
        ("workloads_list.json", ["list", "-n", "1", "-f", "json"]),
        ("workloads_list.csv", ["list", "-n", "1", "-f", "csv"]),
        ("workloads_show.txt", ["show", WORKLOADS[1]]),
        ("workloads_show.json", ["show", WORKLOADS[0], "-f", "json"]),
    ],
)
def test_golden(sample: Store, invoke: Cli, golden: Golden, name: str, words: list[str]) -> None:
    golden(name, invoke("workloads", *words).out)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 3),
        (["--definition", "dense_gemm_*"], 3),
        (["--definition", "gdn_*"], 0),
        (["--definition", "gdn_*", "--definition", "*k32"], 3),
        (["--run", CAPTURE_B], 2),
        (["--run", CAPTURE_A[:13]], 3),
        (["--since", "yesterday"], 2),
        (["--until", "yesterday"], 3),
        (["--until", "2026-11-28T08:15:31Z"], 1),
        (["--until", "2026-11-28T08:15:31Z", "--by", "arrived"], 1),
        (["--differing"], 1),
        (["-n", "2"], 2),
    ],
)
def test_list_filters(sample: Store, invoke: Cli, words: list[str], count: int) -> None:
    done = invoke("workloads", "list", "-f", "json", *words)
    assert len(json.loads(done.out)) == count


def test_by_arrived_means_when_it_came_here(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        connection.execute("UPDATE capture SET captured_us = captured_us - 864000000000")
    words = ["workloads", "list", "-f", "json", "--since", "3 days ago"]
    assert len(json.loads(invoke(*words).out)) == 0
    assert len(json.loads(invoke(*words, "--by", "arrived").out)) == 3


def test_different_outputs_for_the_same_inputs_are_a_finding(sample: Store, invoke: Cli) -> None:
    assert (
        "1 workload gave different outputs for the same inputs" in invoke("workloads", "list").err
    )
    shown = invoke("workloads", "show", WORKLOADS[1]).out
    assert "the same inputs gave 2 different outputs" in shown
    assert "different outputs" not in invoke("workloads", "show", WORKLOADS[0]).out


def test_verdict_shown_is_the_newest(sample: Store, invoke: Cli) -> None:
    rows = {r["uuid"]: r for r in json.loads(invoke("workloads", "list", "-f", "json").out)}
    assert [rows[uuid]["verdict"] for uuid in WORKLOADS] == ["passed", "failed", "passed"]


def states(text: str) -> dict[str, str]:
    """Input name to the state of its bytes, from a JSON page."""
    return {row["name"]: row["state"] for row in json.loads(text)["inputs"]}


def test_show_says_whether_the_bytes_are_there(sample: Store, invoke: Cli) -> None:
    assert states(invoke("workloads", "show", WORKLOADS[0], "-f", "json").out) == {
        "A": "present", "W": "present",
    }  # fmt: skip
    assert states(invoke("workloads", "show", WORKLOADS[1], "-f", "json").out) == {
        "A": "missing", "W": "present",
    }  # fmt: skip


def test_show_says_how_to_fetch_absent_bytes(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        connection.execute(
            "UPDATE blob SET present = 0, hint = 'git lfs pull' WHERE sha256 = ?",
            (ACTIVATION[1].sha256,),
        )
    shown = invoke("workloads", "show", WORKLOADS[1]).out
    assert "A: bytes are elsewhere: git lfs pull" in shown


def test_scalars_and_uncaptured_inputs_are_shown(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        connection.executemany(
            "INSERT INTO workload_input(workload_id, name, scalar, random) VALUES (1, ?, ?, ?)",
            [
                ("sm_scale", "0.125", None),
                ("causal", "true", None),
                ("Z", None, '{"type":"random"}'),
            ],
        )
    lines = invoke("workloads", "show", WORKLOADS[0]).out.splitlines()
    assert any(line.split()[:2] == ["sm_scale", "scalar"] and "0.125" in line for line in lines)
    assert any(line.startswith("Z") and "not captured" in line for line in lines)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"short",
        b"\xff" * 8,
        (100_000_001).to_bytes(8, "little") + b"{}",
        (2**63).to_bytes(8, "little") + b"{}",
        (16).to_bytes(8, "little") + b"not json at all!",
        (2).to_bytes(8, "little") + b"{}",
        (60).to_bytes(8, "little")
        + b'{"tensor":{"dtype":"BF16","shape":[9],"data_offsets":[0,8]}}',
    ],
    ids=["empty", "short", "ones", "1e8", "2e63", "no json", "no tensor", "shape"],
)
def test_lying_blob_is_damaged_and_not_a_traceback(
    sample: Store, invoke: Cli, damage: bytes
) -> None:
    path = sample.blobs.path(ACTIVATION[0].sha256)
    path.write_bytes(damage)
    done = invoke("workloads", "show", WORKLOADS[0], "-f", "json")
    assert done.code == 0
    assert states(done.out)["A"] == "damaged"


def test_sound_file_of_another_size_is_damaged(sample: Store, invoke: Cli) -> None:
    other = sample.blobs.path(WEIGHT.sha256).read_bytes()
    sample.blobs.path(ACTIVATION[0].sha256).write_bytes(other)
    assert states(invoke("workloads", "show", WORKLOADS[0], "-f", "json").out)["A"] == "damaged"


def test_folder_in_place_of_a_blob_is_damaged(sample: Store, invoke: Cli) -> None:
    path = sample.blobs.path(ACTIVATION[0].sha256)
    path.unlink()
    path.mkdir()
    assert states(invoke("workloads", "show", WORKLOADS[0], "-f", "json").out)["A"] == "damaged"


def test_unknown_or_ambiguous_workload(sample: Store, invoke: Cli) -> None:
    assert invoke("workloads", "show", "ffff").code == 3
    done = invoke("workloads", "show", "a1b2")
    assert done.code == 2
    assert "beginning of several workloads" in done.err


def test_hostile_names_do_not_steer_the_terminal(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        connection.execute("UPDATE definition SET name = ?", (f"\x1b[2J{BODY['name']}\nrow",))
    out = invoke("workloads", "list").out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 5
