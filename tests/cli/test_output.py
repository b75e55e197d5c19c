"""Tables fit the terminal, programs get raw values, and no cell can steer the screen."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from kclab.cli.output import (
    Column,
    Format,
    note,
    only_columns,
    print_fields,
    print_json,
    print_rows,
    printable,
)
from kclab.cli.show import dated, show_ms, show_time
from kclab.cli.table import GAP, MIN_WIDE
from kclab.core.when import parse_when

ROWS = [
    {"id": "a", "status": "passed", "count": 7, "text": "a sentence that goes on and on for long"},
    {"id": "b", "status": "failed", "count": 123_456, "text": None},
]
COLUMNS = (
    Column("id"),
    Column("status"),
    Column("count", right=True, show=lambda n: f"{n:,}"),
    Column("text", wide=True),
)


def printed(columns: Sequence[Column] = COLUMNS, form: Format = Format.TABLE, **more: Any) -> str:
    """What print_rows writes to stdout."""
    out = io.StringIO()
    with redirect_stdout(out):
        print_rows(more.pop("rows", ROWS), columns, form, **more)
    return out.getvalue()


def test_numbers_are_aligned_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert printed().splitlines() == [
        "id  status    count  text",
        "─" * 60,
        "a   passed        7  a sentence that goes on and on for long",
        "b   failed  123,456  -",
    ]


def test_wide_column_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = printed().splitlines()
    assert max(map(len, lines)) == 40
    assert lines[2] == "a   passed        7  a sentence that go…"


def test_sentences_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    lines = printed([*COLUMNS[:3], Column("text", wrap=True)]).splitlines()
    assert lines[2:4] == [
        "a   passed        7  a sentence that goes on",
        "                     and on for long",
    ]


def test_names_keep_both_ends_and_definitions_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "35")
    rows = [{"definition": "dense_gemm_bf16_nt_n12288_k4096", "where": "blocks.17.attn.to_out.0"}]
    columns = [Column("definition", first=True), Column("where", middle=True)]
    assert printed(columns, rows=rows).splitlines()[2] == "…n12288_k4096  blocks.17.….to_out.0"


def test_too_narrow_a_terminal_gets_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert printed(rows=ROWS[1:]).splitlines() == [
        "id      b",
        "status  failed",
        "count   123,456",
        "text    -",
    ]


cells = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=4),
    width=st.integers(20, 100),
)
def test_no_table_is_broader_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, ...]], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [Column("a", wide=True), Column("b", first=True), Column("c", middle=True),
               Column("d", wrap=True)]  # fmt: skip
    text = printed(columns, rows=[dict(zip("abcd", row, strict=True)) for row in rows])
    if width >= 4 * MIN_WIDE + 3 * GAP:
        assert max(cell_len(line) for line in text.splitlines()) <= width


def test_pipe_without_columns_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    rows = [{"text": "x" * 500}]
    assert "x" * 500 in printed([Column("text", wide=True)], rows=rows)


def test_sparse_column_without_values_is_left_out() -> None:
    rows = [{"a": 1, "tags": []}, {"a": 2, "tags": None}]
    columns = [Column("a"), Column("tags", sparse=True)]
    assert "tags" not in printed(columns, rows=rows)
    assert "tags" in printed(columns, rows=[{"a": 1, "tags": ["x"]}])
    assert "tags" in printed(columns, Format.CSV, rows=rows)


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, True),
        ({"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm"}, False),
    ],
)
def test_colour_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[32mpassed" in printed()) is coloured


def test_json_and_csv_carry_raw_values() -> None:
    assert json.loads(printed(form=Format.JSON)) == ROWS
    rows = list(csv.reader(io.StringIO(printed(form=Format.CSV))))
    assert rows[0] == ["id", "status", "count", "text"]
    assert rows[2] == ["b", "failed", "123456", ""]


def test_csv_holds_lists_and_objects_as_json() -> None:
    rows = [{"a": {"M": 8}, "b": ["x", "y"]}]
    text = printed([Column("a"), Column("b")], Format.CSV, rows=rows)
    cells = list(csv.reader(io.StringIO(text)))[1]
    assert [json.loads(cell) for cell in cells] == [{"M": 8}, ["x", "y"]]


def test_json_is_valid_whatever_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"worst": float("nan"), "rows": [float("-inf"), 1.5], "path": object})
    assert json.loads(capsys.readouterr().out) == {
        "worst": None, "rows": [None, 1.5], "path": "<class 'object'>",
    }  # fmt: skip


def test_empty_table_says_so_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], COLUMNS, Format.TABLE, empty="no run matches.")
    assert capsys.readouterr() == ("", "no run matches.\n")


def test_fields_are_aligned_and_go_on_indented(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"a": 1, "longer": "x\ny", "none": None}, Format.TABLE)
    assert capsys.readouterr().out == "a       1\nlonger  x\n        y\nnone    -\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcödé 日本", "plain ünïcödé 日本"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\u202eevil", "\\u202eevil"),
        ("\udcff", "\\udcff"),
        ("tab\there", "tab  here"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert shown in printed([Column("t")], rows=[{"t": text}])


def test_newline_in_a_cell_does_not_break_the_row() -> None:
    assert "one two" in printed([Column("t")], rows=[{"t": "one\ntwo"}])


def test_note_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note("since yesterday")
    assert capsys.readouterr() == ("", "since yesterday\n")


def test_times_come_twice() -> None:
    row = dated(
        {"id": 1, "started_us": 1_500_000, "took_us": 7, "ended_us": None}, "started", "ended"
    )
    assert list(row.items()) == [
        ("id", 1), ("started", "1970-01-01T00:00:01.500Z"), ("started_us", 1_500_000),
        ("took_us", 7), ("ended", None), ("ended_us", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        ("2026-11-30T10:10:30Z", "5 min ago"),
        ("2026-11-29T10:15:31Z", "23 h ago"),
        ("2026-11-29T10:15:30Z", "Nov 29 19:15"),
        ("2025-11-29T20:15:30Z", "2025-11-30"),
    ],
)
def test_table_times_are_ages_then_local(fixed_clock: None, instant: str, text: str) -> None:
    assert show_time(parse_when(instant)) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(0.012345, "0.01235"), (1.0, "1.000"), (999.4, "999.4"), (86_000.4, "86,000")]
)
def test_milliseconds_keep_four_digits(ms: float, text: str) -> None:
    assert show_ms(ms) == text


def test_only_columns_keeps_their_keys() -> None:
    assert only_columns(ROWS, COLUMNS[:1]) == [{"id": "a"}, {"id": "b"}]
