"""`kclab runs` finds, shows, compares, labels and removes runs."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import sqlite3
import subprocess
from contextlib import closing

import pytest

from kclab.cli.runs import Sort, Status
from kclab.core.environment import boot_id, process_started_us
from kclab.db.models import RUN_STATUSES
from kclab.db.queries.runs import SORTS
from kclab.db.store import Store
from tests.cli.conftest import Golden
from tests.cli.sample import (
    BENCH_A,
    BENCH_B,
    CAPTURE_A,
    CAPTURE_B,
    DEAD,
    REPLAY_A,
    REPLAY_B,
)
from tests.conftest import Cli


def listed(text: str) -> list[str]:
    """Uuids of a JSON listing."""
    return [row["uuid"] for row in json.loads(text)]


def test_choices_are_the_tables_own() -> None:
    assert {one.value for one in Status} == set(RUN_STATUSES)
    assert {one.value for one in Sort} == set(SORTS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("runs_list.txt", ["list"]),
        ("runs_list.json", ["list", "-n", "2", "--format", "json"]),
        ("runs_list.csv", ["list", "-n", "2", "--format", "csv"]),
        ("runs_show_capture.txt", ["show", CAPTURE_A]),
        ("runs_show_replay.txt", ["show", REPLAY_B]),
        ("runs_show_replay.json", ["show", REPLAY_B, "--format", "json"]),
        ("runs_show_benchmark.txt", ["show", BENCH_A]),
        ("runs_show_dead.txt", ["show", DEAD]),
        ("runs_diff.txt", ["diff", CAPTURE_A, CAPTURE_B]),
        ("runs_compare_replays.txt", ["compare", REPLAY_A, REPLAY_B]),
        ("runs_compare_captures.txt", ["compare", "--any-env", CAPTURE_A, CAPTURE_B]),
        ("runs_compare_timings.txt", ["compare", "--all", BENCH_A, BENCH_B]),
    ],
)
def test_golden(sample: Store, invoke: Cli, golden: Golden, name: str, words: list[str]) -> None:
    golden(name, invoke("runs", *words).out)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 8),
        (["--command", "replay"], 2),
        (["--command", "replay", "--command", "benchmark"], 4),
        (["--status", "failed"], 1),
        (["--status", "stale"], 1),
        (["--status", "running"], 0),
        (["--status", "stale", "--status", "empty"], 2),
        (["--tag", "keep"], 1),
        (["--tag", "keep", "--tag", "baseline"], 1),
        (["--tag", "keep", "--tag", "other"], 0),
        (["-n", "3"], 3),
    ],
)
def test_list_filters(sample: Store, invoke: Cli, words: list[str], count: int) -> None:
    done = invoke("runs", "list", "--format", "json", *words)
    assert done.code == 0
    assert len(listed(done.out)) == count


def test_list_since_yesterday_means_local_midnight(sample: Store, invoke: Cli) -> None:
    # 10:15 UTC is 19:15 in Tokyo, so that yesterday began 43 h 15 min ago: run A, at 50 h, is out.
    done = invoke("runs", "list", "--since", "yesterday", "--format", "json")
    assert CAPTURE_A not in listed(done.out)
    assert CAPTURE_B in listed(done.out)
    assert done.err == "since 2026-11-29 00:00 +09:00 (2026-11-28T15:00:00Z)\n"


def test_list_until_is_exclusive(sample: Store, invoke: Cli) -> None:
    words = ["runs", "list", "--format", "json", "--until", "2026-11-29T08:15:30Z"]
    assert listed(invoke(*words).out) == [CAPTURE_A]


def test_list_says_how_many_there_are_besides(sample: Store, invoke: Cli) -> None:
    assert "2 of 8 runs; -n shows more." in invoke("runs", "list", "-n", "2").err
    assert invoke("runs", "list").err == ""


def test_list_sorts(sample: Store, invoke: Cli) -> None:
    words = ["runs", "list", "--format", "json"]
    newest = listed(invoke(*words).out)
    assert newest == listed(invoke(*words, "--sort", "started").out)
    assert newest[::-1] == listed(invoke(*words, "--reverse").out)
    commands = [r["command"] for r in json.loads(invoke(*words, "--sort", "command").out)]
    assert commands == sorted(commands, reverse=True)


def test_list_chooses_columns_in_order(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "list", "-n", "1", "--format", "csv", "--columns", "status,uuid,torch")
    assert next(csv.reader(io.StringIO(done.out))) == ["status", "uuid", "torch"]
    done = invoke("runs", "list", "-n", "1", "--columns", "run,exit")
    assert done.out.splitlines()[0].split() == ["run", "exit"]


def test_unknown_column_names_the_choices(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "list", "--columns", "run,speed")
    assert done.code == 2
    assert 'no column "speed"; there are run, command' in done.err


def test_empty_list_is_empty_json_and_a_note(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "list", "--tag", "none", "--format", "json")
    assert (done.code, json.loads(done.out)) == (0, [])
    assert invoke("runs", "list", "--tag", "none").err == "no run matches.\n"


@pytest.mark.parametrize("text", [CAPTURE_A, CAPTURE_A[:13], CAPTURE_A.upper(), "019ad3f2-1"])
def test_run_is_found_by_its_beginning(sample: Store, invoke: Cli, text: str) -> None:
    assert json.loads(invoke("runs", "show", text, "--format", "json").out)["uuid"] == CAPTURE_A


def test_last_is_the_newest_run(sample: Store, invoke: Cli) -> None:
    assert json.loads(invoke("runs", "show", "last", "-f", "json").out)["status"] == "empty"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("019ad3f2", 2, "beginning of several runs (019ad3f2-1c44-7000-8000-00000000000a, "),
        ("019ad3f9", 3, "no run 019ad3f9"),
        ("my-run", 2, '"my-run" is not the uuid of a run'),
        ("%", 2, "is not the uuid"),
    ],
)
def test_run_that_is_not_one(sample: Store, invoke: Cli, text: str, code: int, words: str) -> None:
    done = invoke("runs", "show", text)
    assert done.code == code
    assert words in done.err


def test_living_run_is_running(sample: Store, invoke: Cli) -> None:
    with closing(sample.write()) as connection:
        connection.execute(
            "UPDATE run SET host = ?, boot_id = ?, pid = ?, process_started_us = ? WHERE uuid = ?",
            (socket.gethostname(), boot_id(), os.getpid(), process_started_us(os.getpid()), DEAD),
        )
    done = invoke("runs", "list", "--status", "running", "--format", "json")
    assert listed(done.out) == [DEAD]
    assert "still in progress" in invoke("runs", "rm", "--yes", DEAD).err


def test_compare_exits_1_when_something_got_worse(sample: Store, invoke: Cli) -> None:
    assert invoke("runs", "compare", REPLAY_A, REPLAY_B).code == 1
    assert invoke("runs", "compare", REPLAY_B, REPLAY_A).code == 0
    assert invoke("runs", "compare", BENCH_A, BENCH_B).code == 1


def test_compare_exits_3_when_nothing_is_comparable(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "compare", REPLAY_A, BENCH_A)
    assert done.code == 3
    assert "have no workload, site or measurement in common" in done.err


def test_compare_of_a_run_with_itself_is_the_same(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "compare", REPLAY_B, REPLAY_B)
    assert (done.code, done.out) == (0, "")
    assert "0 worse, 0 better, 0 changed, 0 appeared, 0 vanished, 2 same" in done.err


def test_compare_stays_within_one_environment_unless_asked(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "compare", CAPTURE_A, CAPTURE_B)
    assert done.code == 3
    assert "environments differ (torch 2.13.0 / 2.14.0)" in done.err
    done = invoke("runs", "compare", "--any-env", CAPTURE_A, CAPTURE_B)
    assert done.code == 0
    assert "across environments: torch 2.13.0 / 2.14.0" in done.err


def test_diff_of_a_run_with_itself_says_so_and_all_widens(sample: Store, invoke: Cli) -> None:
    assert invoke("runs", "diff", CAPTURE_A, CAPTURE_A).err == "the two runs do not differ.\n"
    rows = json.loads(invoke("runs", "diff", "--all", CAPTURE_A, CAPTURE_B, "-f", "json").out)
    differing = {row["name"] for row in rows if row["differs"]}
    assert differing == {"git_dirty", "steps", "torch"}
    assert len(rows) > len(differing)


def test_tags_and_notes(sample: Store, invoke: Cli) -> None:
    assert "1 tag added" in invoke("runs", "tag", CAPTURE_A, "keep", "gold").err
    assert "2 tags removed" in invoke("runs", "untag", CAPTURE_A, "keep", "baseline").err
    assert invoke("runs", "untag", CAPTURE_A, "keep").code == 3
    assert "note written" in invoke("runs", "note", CAPTURE_A, "  look at step 4 ").err
    shown = json.loads(invoke("runs", "show", CAPTURE_A, "-f", "json").out)
    assert (shown["tags"], shown["note"]) == (["gold"], "look at step 4")
    assert "note removed" in invoke("runs", "note", CAPTURE_A, "").err
    assert json.loads(invoke("runs", "show", CAPTURE_A, "-f", "json").out)["note"] is None


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * 65, "esc\x1b[31m"])
def test_unfit_tag_is_refused(sample: Store, invoke: Cli, tag: str) -> None:
    assert invoke("runs", "tag", CAPTURE_A, tag).code == 2


def counts(store: Store, *tables: str) -> dict[str, int]:
    """Rows of some tables; no foreign key may dangle."""
    with closing(sqlite3.connect(store.database)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        return {t: connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}


def test_rm_shows_and_removes_all_that_hangs_on_a_run(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "rm", "--yes", CAPTURE_A)
    assert done.code == 0
    assert done.err.splitlines() == [
        "to remove: 1 run",
        "  3 captures",
        "  1 workload that nothing else captured",
        "  3 verdicts of other runs on these captures",
        "  3 blobs (8 KiB) left for `kclab db gc`",
        "removed; `kclab db gc` frees the bytes.",
    ]
    assert counts(sample, "run", "capture", "workload", "replay", "capture_output") == {
        "run": 7, "capture": 2, "workload": 2, "replay": 2, "capture_output": 2,
    }  # fmt: skip


def test_rm_keeps_what_another_run_needs(sample: Store, invoke: Cli) -> None:
    assert "2 captures" in invoke("runs", "rm", "-y", CAPTURE_B).err
    assert counts(sample, "capture", "workload", "replay") == {
        "capture": 3, "workload": 3, "replay": 3,
    }  # fmt: skip


def test_rm_of_both_captures_takes_workloads_and_verdicts(sample: Store, invoke: Cli) -> None:
    invoke("runs", "rm", "-y", CAPTURE_A, CAPTURE_B, CAPTURE_A[:14])
    assert counts(sample, "run", "capture", "workload", "workload_input", "replay") == {
        "run": 6, "capture": 0, "workload": 0, "workload_input": 0, "replay": 0,
    }  # fmt: skip


def test_rm_before_a_time(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "rm", "--before", "yesterday", "--yes")
    assert done.err.startswith(
        "before 2026-11-29 00:00 +09:00 (2026-11-28T15:00:00Z)\nto remove: 1 run\n"
    )
    assert counts(sample, "run") == {"run": 7}
    assert invoke("runs", "rm", "--before", "2026-01-01", "--yes").code == 3


def test_rm_asks_and_does_nothing_unasked(sample: Store, invoke: Cli, cli: Cli) -> None:
    done = cli("runs", "rm", CAPTURE_A, stdin=subprocess.DEVNULL)
    assert done.code == 2
    assert "add --yes, since there is nobody to ask" in done.err
    assert invoke("runs", "rm").code == 2
    assert invoke("runs", "rm", "--yes", CAPTURE_A, "--before", "yesterday").code == 2
    assert counts(sample, "run", "capture") == {"run": 8, "capture": 5}


SEARCH = f"""
    INSERT INTO fc2_boundary(id, workload_id, precision, m, m_padded, n, k, fast_accumulation,
        source, added_us) VALUES (1, 3, 'bf16', 32, 32, 64, 32, 0, 'captured', 0);
    INSERT INTO algo_config VALUES (1, 66, 600, 36, 1, 0, 0, 0, 0, 2), (2, 66, 600, 36, 2, 2, 0, 0, 0, 2);
    INSERT INTO fc2_validity(id, sha256, backend, facts) VALUES (1, '{"0" * 64}', 'cpu', '{{}}');
    INSERT INTO fc2_result(run_id, boundary_id, config_id, validity_id, scope, stage, baseline,
        supplied_workspace, b_ms, ratio, ratio_low, ratio_high, pairs, verdict, exact, is_control,
        imported, measured_us)
    VALUES (5, 1, 1, 1, 'gemm', 'final', 'F.linear', 0, 1.0, 1.080, 1.075, 1.085, 40, 'FAST', 1, 0, 0, 1),
           (5, 1, 2, 1, 'gemm', 'final', 'F.linear', 0, 1.0, 1.020, 1.010, 1.030, 40, 'FAST', 1, 0, 0, 2),
           (6, 1, 1, 1, 'gemm', 'final', 'F.linear', 0, 1.0, 1.080, 1.075, 1.085, 40, 'FAST', 0, 0, 0, 3),
           (6, 1, 2, 1, 'gemm', 'final', 'F.linear', 0, 1.0, 1.051, 1.041, 1.061, 40, 'FAST', 1, 0, 0, 4);
"""  # noqa: E501  rows read better whole


@pytest.fixture
def searched(sample: Store) -> Store:
    """The benchmark runs also searched configs for a GEMM: the boundary is workload 2."""
    with closing(sqlite3.connect(sample.database)) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.executescript(SEARCH)
    return sample


def test_compare_joins_searched_configs(searched: Store, invoke: Cli) -> None:
    rows = json.loads(invoke("runs", "compare", BENCH_A, BENCH_B, "-f", "json").out)
    configs = {row["module_path"]: (row["change"], row["after"]) for row in rows if row["workload"]}
    assert configs == {
        "66:600:36:1:0:0:0:0:2 gemm": ("worse", "1.080x (1.075..1.085), not exact"),
        "66:600:36:2:2:0:0:0:2 gemm": ("better", "1.051x (1.041..1.061)"),
    }


@pytest.mark.parametrize(
    ("factor", "change"), [(1.0, "same"), (1.01, "same"), (1.2, "worse"), (0.8, "better")]
)
def test_compare_of_plain_times_is_by_their_samples(
    sample: Store, invoke: Cli, factor: float, change: str
) -> None:
    with closing(sqlite3.connect(sample.database)) as connection, connection:
        connection.executemany(
            "INSERT INTO measurement(id, run_id, name, candidate_ms, pairs)"
            " VALUES (?, ?, 'plain', 5, 0)",
            [(51, 5), (61, 6)],
        )
        connection.executemany(
            "INSERT INTO timing_sample(measurement_id, round, position, arm, ms)"
            " VALUES (?, ?, 0, 'A', ?)",
            [
                (m, n, 5 * f * (1 + n % 5 / 1000))
                for m, f in ((51, 1), (61, factor))
                for n in range(20)
            ],
        )
    rows = json.loads(invoke("runs", "compare", "--all", BENCH_A, BENCH_B, "-f", "json").out)
    assert {row["change"] for row in rows if row["name"] == "plain"} == {change}


def test_rm_keeps_a_workload_that_a_search_needs(searched: Store, invoke: Cli) -> None:
    assert "1 workload" not in invoke("runs", "rm", "-y", CAPTURE_A).err
    assert counts(searched, "workload", "fc2_boundary", "fc2_result") == {
        "workload": 3, "fc2_boundary": 1, "fc2_result": 4,
    }  # fmt: skip


def test_rm_takes_the_results_of_a_search(searched: Store, invoke: Cli) -> None:
    assert "  2 results of a search" in invoke("runs", "rm", "-y", BENCH_A).err
    assert counts(searched, "fc2_result", "measurement") == {"fc2_result": 2, "measurement": 2}


def test_missing_database_is_one_sentence(invoke: Cli) -> None:
    done = invoke("runs", "list")
    assert done.code == 5
    assert done.err.startswith("kclab: ")
    assert "no such database" in done.err
