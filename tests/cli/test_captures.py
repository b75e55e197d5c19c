"""`kclab captures` lists receipts and says where two runs first differ."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from kclab.db.store import Store
from tests.cli.conftest import Golden
from tests.cli.sample import ACTIVATION, CAPTURE_A, CAPTURE_B, REPLAY_A
from tests.conftest import Cli


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("captures_list.txt", ["list"]),
        ("captures_list.json", ["list", "-n", "1", "-f", "json"]),
        ("captures_list.csv", ["list", "-n", "1", "-f", "csv"]),
        ("captures_show.txt", ["show", "21"]),
        ("captures_show.json", ["show", "21", "-f", "json"]),
        ("captures_diff.txt", ["diff", CAPTURE_A, CAPTURE_B]),
        ("captures_diff.json", ["diff", "--all", CAPTURE_A, CAPTURE_B, "-f", "json"]),
    ],
)
def test_golden(sample: Store, invoke: Cli, golden: Golden, name: str, words: list[str]) -> None:
    golden(name, invoke("captures", *words).out)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 5),
        (["--run", CAPTURE_A], 3),
        (["--run", REPLAY_A], 0),
        (["--definition", "*k32"], 5),
        (["--definition", "*k33"], 0),
        (["--since", "yesterday"], 2),
        (["--until", "yesterday"], 3),
        (["-n", "4"], 4),
    ],
)
def test_list_filters(sample: Store, invoke: Cli, words: list[str], count: int) -> None:
    done = invoke("captures", "list", "-f", "json", *words)
    assert len(json.loads(done.out)) == count


def test_list_is_newest_first(sample: Store, invoke: Cli) -> None:
    rows = json.loads(invoke("captures", "list", "-f", "json").out)
    times = [row["captured_us"] for row in rows]
    assert times == sorted(times, reverse=True)


def test_diff_names_the_first_difference(sample: Store, invoke: Cli) -> None:
    done = invoke("captures", "diff", CAPTURE_A, CAPTURE_B)
    assert done.code == 1
    assert "3 sites: identical 1, outputs differ 1, only in A 1" in done.err
    assert "first difference: outputs differ at blocks.1.attn.to_out.0 step 4" in done.err


def test_diff_of_a_run_with_itself_is_clean(sample: Store, invoke: Cli) -> None:
    done = invoke("captures", "diff", CAPTURE_A, CAPTURE_A)
    assert (done.code, done.out) == (0, "")
    assert "identical 3" in done.err


def test_diff_tells_a_difference_that_came_in_from_one_that_arose(
    sample: Store, invoke: Cli
) -> None:
    with closing(sample.write()) as connection:
        # Run B computed site 1 from other inputs: they are those of workload 2.
        connection.execute("UPDATE capture SET workload_id = 3 WHERE run_id = 2 AND step = 4")
    rows = json.loads(invoke("captures", "diff", CAPTURE_A, CAPTURE_B, "-f", "json").out)
    assert [(row["match"], row["differing"]) for row in rows] == [
        ("inputs differ", ["A"]),
        ("only in A", None),
    ]


def test_diff_matches_repeated_sites_in_order(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        # A second request meets site 0 again in run A, with another output.
        connection.execute(
            "INSERT INTO capture(uuid, run_id, workload_id, site, operation, module_path, step,"
            " captured_us, arrived_us, receipt)"
            " SELECT 'ffff0000-0000-5000-8000-000000000000', 1, 1, site, operation, module_path,"
            " step, captured_us + 5000000, arrived_us, receipt FROM capture WHERE id = 1"
        )
        connection.execute(
            "INSERT INTO capture_output(capture_id, ordinal, name, blob_sha256)"
            " SELECT max(id), 0, 'C', ? FROM capture",
            (ACTIVATION[0].sha256,),
        )
    rows = json.loads(invoke("captures", "diff", "--all", CAPTURE_A, CAPTURE_B, "-f", "json").out)
    assert [(row["match"], row["step"]) for row in rows] == [
        ("identical", 0),
        ("outputs differ", 4),
        ("only in A", 8),
        ("only in A", 0),
    ]


def test_diff_with_nothing_in_common_exits_3_and_says_what_there_is(
    sample: Store, invoke: Cli
) -> None:
    done = invoke("captures", "diff", CAPTURE_A, REPLAY_A)
    assert done.code == 3
    assert "have no site in common (only in A 3)." in done.err
    done = invoke("captures", "diff", REPLAY_A, REPLAY_A)
    assert "have no site in common: `kclab runs list` shows which captured" in done.err


def test_diff_cuts_a_long_table_and_says_so(sample: Store, invoke: Cli) -> None:
    done = invoke("captures", "diff", CAPTURE_A, CAPTURE_B, "-n", "1")
    assert len(done.out.splitlines()) == 3
    assert "1 of 2 sites; -n shows more." in done.err
