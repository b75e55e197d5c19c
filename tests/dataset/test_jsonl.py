"""Reading JSON Lines: lines end at the byte \\n alone, and every fault has a line number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclab.dataset.jsonl import JsonLines, read_jsonl

Read = Callable[[bytes], JsonLines]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def from_bytes(content: bytes) -> JsonLines:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(content)
        return read_jsonl(path)

    return from_bytes


def test_unicode_line_separators_stay_inside_a_line(read: Read) -> None:
    row = {"prompt": "a red\u2028teapot\u2029on\u0085a \x0b table"}
    text = json.dumps(row, ensure_ascii=False) + "\n"
    lines = read((text * 2).encode())
    assert [record.value for record in lines.records] == [row, row]
    assert not lines.bad


def test_a_nul_block_is_a_bad_line_and_the_rows_around_it_are_read(read: Read) -> None:
    lines = read(b'{"a": 1}\n' + b"\0" * 300 + b'\n{"a": 2}\n')
    assert [(r.number, r.value["a"]) for r in lines.records] == [(1, 1), (3, 2)]
    assert [(bad.number, "300 NUL" in bad.reason) for bad in lines.bad] == [(2, True)]


def test_a_nul_block_at_the_end_is_damage_not_a_torn_line(read: Read) -> None:
    lines = read(b'{"a": 1}\n' + b"\0" * 64)
    assert lines.torn is None
    assert lines.bad[0].number == 2


def test_blank_lines_and_carriage_returns_are_fine(read: Read) -> None:
    lines = read(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert [record.number for record in lines.records] == [1, 4]
    assert not lines.bad and lines.torn is None


@pytest.mark.parametrize("content", [b"[1]\n", b'"text"\n', b"nonsense\n", b'{"a": "\xff"}\n'])
def test_anything_but_an_object_is_a_bad_line(read: Read, content: bytes) -> None:
    lines = read(content + b"{}\n")
    assert [bad.number for bad in lines.bad] == [1]


def test_a_torn_line_before_the_last_is_a_bad_line(read: Read) -> None:
    lines = read(b'{"a": 1, "b\n{"a": 2}\n')
    assert lines.torn is None
    assert [bad.number for bad in lines.bad] == [1]


ROW = json.dumps({"a": [1.5, True, None], "é": {"b": 'x"\\y', "c": -12}}).encode()


@given(st.integers(1, len(ROW) - 1), st.sampled_from([b"", b"\n", b"\n\n"]))
def test_a_row_cut_anywhere_is_torn(tmp_path_factory: Any, cut: int, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    path.write_bytes(b"{}\n" + ROW[:cut] + tail)
    lines = read_jsonl(path)
    assert lines.torn is not None and lines.torn.number == 2
    assert not lines.bad
    assert len(lines.records) == 1


def test_a_complete_last_line_without_newline_is_a_record(read: Read) -> None:
    lines = read(ROW)
    assert len(lines.records) == 1 and lines.torn is None
