"""FC2 tables: whole where there is room, still tables on 80 columns."""

from __future__ import annotations

import pytest

from kclab.cli.fc2_show import RESULT_COLUMNS, with_text
from kclab.cli.output import Format, print_rows

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


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_rows([ROW], RESULT_COLUMNS, Format.TABLE)
    return capsys.readouterr().out.splitlines()


def test_80_columns_keep_shape_config_gain_verdict_and_parity(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, _, row = lines(capsys)
    assert head.split() == ["shape", "dtype", "config", "gain", "verdict", "parity"]
    assert len(row) <= 80 and row.split()[:2] == ["37810x5376x14336", "fp8+fast"]
    assert "exact" not in row, "an inexact config never looks exact"


def test_more_columns_come_with_more_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    head, _, row = lines(capsys)
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
