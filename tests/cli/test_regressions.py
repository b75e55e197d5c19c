"""`kclab runs compare --fail-on-regression` and `kclab fc2 history` judge timings over time."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from contextlib import closing

import pytest

from kclab.cli.plots import interval_bar, sparkline
from kclab.core.errors import BadUsage
from kclab.core.units import parse_share
from kclab.db.store import Store
from tests.cli.sample import BENCH_A, BENCH_B, REPLAY_A
from tests.conftest import Cli


def add_timing(store: Store, run_id: int, slower: float, rounds: int = 60) -> None:
    """A measurement `gemm` of a run in ABBA rounds, with 1 % noise."""
    rng = random.Random(run_id)
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("DELETE FROM measurement WHERE run_id = ?", (run_id,))
        measurement = connection.execute(
            "INSERT INTO measurement(run_id, name, ratio, pairs) VALUES (?, 'gemm', ?, ?)",
            (run_id, 1 / slower, rounds),
        ).lastrowid
        connection.executemany(
            "INSERT INTO timing_sample(measurement_id, round, position, arm, ms)"
            " VALUES (?,?,?,?,?)",
            [
                (
                    measurement,
                    n,
                    p,
                    arm,
                    math.exp(rng.gauss(0, 0.01)) * (slower if arm == "B" else 1),
                )
                for n in range(rounds)
                for p, arm in enumerate("ABBA")
            ],
        )


def compared(invoke: Cli, *more: str) -> tuple[int, str]:
    done = invoke("runs", "compare", BENCH_A, BENCH_B, *more)
    return done.code, done.out + done.err


@pytest.mark.parametrize(
    ("slower", "share", "code"),
    [(1.0, "3%", 0), (1.03, "3%", 1), (1.03, "10%", 0), (1.12, "10%", 1), (0.9, "3%", 0)],
)
def test_only_a_regression_of_that_size_fails(
    sample: Store, invoke: Cli, slower: float, share: str, code: int
) -> None:
    add_timing(sample, 5, 1.0)
    add_timing(sample, 6, slower)
    assert compared(invoke, "--fail-on-regression", share)[0] == code


def test_a_slow_down_below_the_limit_is_still_shown(sample: Store, invoke: Cli) -> None:
    add_timing(sample, 5, 1.0)
    add_timing(sample, 6, 1.03)
    code, text = compared(invoke, "--fail-on-regression", "10%", "-f", "json")
    row = json.loads(text[: text.rindex("]") + 1])[0]
    assert (code, row["change"], row["verdict"], row["basis"]) == (
        0, "worse", "SLOW", "paired rounds",
    )  # fmt: skip
    assert row["gain_low"] < 1 / 1.03 < row["gain_high"] < 1
    assert 0 < row["noise"] < 0.01


@pytest.mark.parametrize("rounds", [1, 5])
def test_too_few_rounds_cannot_pass_a_gate(sample: Store, invoke: Cli, rounds: int) -> None:
    add_timing(sample, 5, 1.0, rounds)
    add_timing(sample, 6, 1.0, rounds)
    code, text = compared(invoke, "--fail-on-regression", "3%")
    assert code == 3 and "samples enough" in text


def test_verdicts_alone_cannot_pass_a_timing_gate(sample: Store, invoke: Cli) -> None:
    done = invoke("runs", "compare", REPLAY_A, REPLAY_A, "--fail-on-regression", "3%")
    assert done.code == 3


def test_a_wide_terminal_shows_the_interval(
    sample: Store, invoke: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    text = compared(invoke)[1]
    assert "-8.8 % (-10.5 … -7.1)" in text and "●" in text


@pytest.mark.parametrize("text", ["3", "0.03", "-3%", "0%", "100%", "many%"])
def test_an_unfit_share_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="like 3%"):
        parse_share(text)


def test_shares() -> None:
    assert [parse_share(text) for text in ("3%", "0.5 %", "12.5%")] == [0.03, 0.005, 0.125]


def test_plots() -> None:
    assert sparkline([1.0, 2.0, None, 3.0]) == "▁▅ █"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert interval_bar(0.945, 0.965, 0.985, (0.9, 1.1), 20) == "    ├─●─┤ ┊         "
    assert interval_bar(0.5, 0.99, 1.5, (0.9, 1.1), 5) == "◂─●─▸"
    assert interval_bar(1.02, 1.05, 1.08, (1.0, 1.1), 11) == "┊ ├──●──┤  "
    assert interval_bar(None, 1.05, None, (1.0, 1.1), 11).strip("┊ ") == "●"


HISTORY = """
    INSERT INTO fc2_boundary(id, workload_id, precision, m, m_padded, n, k, fast_accumulation,
        source, added_us) VALUES (1, 3, 'bf16', 32, 32, 64, 32, 0, 'captured', 0);
    INSERT INTO algo_config VALUES (1, 66, 600, 36, 1, 0, 0, 0, 0, 2);
    INSERT INTO fc2_validity(id, sha256, backend, facts)
        VALUES (1, 'a', 'cpu', '{"driver": "575"}'), (2, 'b', 'cpu', '{"driver": "580"}');
"""
CONFIG = "66:600:36:1:0:0:0:0:2"


def add_results(store: Store, *ratios: float) -> None:
    """Measurements of one config on one workload, the last one with another driver."""
    with closing(sqlite3.connect(store.database)) as connection:
        connection.executescript(HISTORY)
        connection.executemany(
            "INSERT INTO fc2_result(run_id, boundary_id, config_id, validity_id, scope, stage,"
            " baseline, supplied_workspace, b_ms, ratio, ratio_low, ratio_high, floor, pairs,"
            " verdict, exact, is_control, imported, measured_us) VALUES (5, 1, 1, ?, 'gemm',"
            " 'final', 'F.linear', 0, 1, ?, ?, ?, 0.004, 40, 'FAST', 1, 0, 0, ?)",
            [
                (1 + (n == len(ratios) - 1), ratio, ratio * 0.998, ratio * 1.002, n)
                for n, ratio in enumerate(ratios)
            ],
        )
        connection.commit()


def test_history_compares_each_measurement_with_the_one_before(sample: Store, invoke: Cli) -> None:
    add_results(sample, 1.10, 1.101, 1.05)
    rows = json.loads(invoke("fc2", "history", CONFIG, "-f", "json").out)
    assert [row["trend"] for row in rows] == ["SLOW", "SAME", None]
    assert [row["verdict"] for row in rows] == ["FAST"] * 3
    assert [row["changed"] for row in rows] == ["driver 575 → 580", None, None]
    assert rows[0]["gain"] == pytest.approx(1.05 / 1.101)


def test_history_tells_environment_changes_before_the_rows(sample: Store, invoke: Cli) -> None:
    add_results(sample, 1.10, 1.101, 1.05)
    done = invoke("fc2", "history", CONFIG)
    assert "changed: driver 575 → 580" in done.err.splitlines()[0]
    assert "██▁  gain +5.0 … +10.1 %" in done.err
    assert "-4.6 % (-4.9 … -4.4)" in done.out


@pytest.mark.parametrize(
    ("ratios", "code"), [((1.1, 1.05), 1), ((1.1, 1.09), 0), ((1.05, 1.1), 0), ((1.1,), 3)]
)
def test_history_gates_on_the_newest(
    sample: Store, invoke: Cli, ratios: tuple[float, ...], code: int
) -> None:
    add_results(sample, *ratios)
    assert invoke("fc2", "history", CONFIG, "--fail-on-regression", "3%").code == code
    assert invoke("fc2", "history", CONFIG).code == 0
