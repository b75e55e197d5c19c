"""Which program wrote a folder of dumped tensors."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path


class DumpKind(StrEnum):
    """A dump's writer."""

    SGLANG_DUMPER = "sglang dumper"
    """`DUMPER_ENABLE=1 DUMPER_NON_INTRUSIVE_MODE=all`: one file a tensor."""
    SGLANG_PASSES = "sglang tensor dump"
    """`--debug-tensor-dump-output-folder`: one file a forward pass, outputs of modules."""
    FLASHINFER = "flashinfer level 10"
    """`FLASHINFER_LOGLEVEL=10`: one folder a call."""


PASS = re.compile(r"Pass(\d+)\.pt")
PASSES_FOLDER = re.compile(r"TP(\d+)_PP(\d+)_Rank(\d+)_pid\d+")
DUMPED = re.compile(r"step=\d+___rank=\d+___dump_index=\d+___name=.*\.pt")


def dump_kind(path: Path) -> DumpKind | None:
    """What the folder is a dump of; None where it is none."""
    if not path.is_dir():
        return None
    if (path / "session.jsonl").is_file() or (path / "metadata.jsonl").is_file():
        return DumpKind.FLASHINFER
    if any(pass_folders(path)):
        return DumpKind.SGLANG_PASSES
    if any(dumper_files(path)):
        return DumpKind.SGLANG_DUMPER
    return None


def pass_folders(path: Path) -> list[Path]:
    """The folders of ranks, each with a file a pass; `path` may be one of them."""
    folders = [path, *sorted(path.glob("TP*_PP*_Rank*_pid*"))]
    return [f for f in folders if f.is_dir() and any(PASS.fullmatch(p.name) for p in f.iterdir())]


def dumper_files(path: Path) -> list[Path]:
    """SGLang's Dumper's files, in `path` or one folder below."""
    found = [*path.glob("step=*.pt"), *path.glob("*/step=*.pt")]
    return sorted(p for p in found if DUMPED.fullmatch(p.name))
