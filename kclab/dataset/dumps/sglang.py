"""SGLang's two dumps: its Dumper's files, and the passes of its tensor dump."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from kclab.core.errors import BadUsage, DatasetRefused
from kclab.dataset.dumps.call import DumpedCall, Skipped
from kclab.dataset.dumps.kinds import PASS, PASSES_FOLDER, dumper_files, pass_folders
from kclab.dataset.dumps.linears import inputs_of_pass, linear_call
from kclab.dataset.dumps.tensor_files import Checkpoint, load

NAMED = re.compile(r"non_intrusive__(?P<module>.+)\.(?P<side>inputs|output)(?P<key>\..+)?")
FACTS = {"engine": "SGLang"}

Found = Iterator[DumpedCall | Skipped]


def require_checkpoint(path: Path, model: Path | None) -> Checkpoint:
    """The weights; SGLang's dumps have none."""
    if model is None:
        raise BadUsage(
            f"{path}: SGLang dumps activations without weights; name the model's folder with "
            "--model DIR."
        )
    return Checkpoint(model)


def read_dumper(path: Path, checkpoint: Checkpoint) -> Found:
    """Linears of which the Dumper wrote input and output (`DUMPER_NON_INTRUSIVE_MODE=all`)."""
    calls: dict[tuple[int, int, str], dict[str, Path]] = defaultdict(dict)
    for file in dumper_files(path):
        tags = dict(part.split("=", 1) for part in file.stem.split("___") if "=" in part)
        named = NAMED.fullmatch(file.stem.partition("___name=")[2].partition("___")[0])
        if named is not None:
            where = (int(tags["step"]), int(tags["rank"]), named["module"])
            calls[where].setdefault(named["side"], file)
    for (step, rank, module), sides in sorted(calls.items()):
        if {"inputs", "output"} <= set(sides):
            given, made = (_value(sides[side]) for side in ("inputs", "output"))
            yield from _linear(module, given, made, checkpoint, step, {"rank": rank})


def _value(file: Path) -> Any:
    saved = load(file)
    if not isinstance(saved, dict) or "value" not in saved:
        raise DatasetRefused(f"{file}: no value in it, so not a file of SGLang's Dumper.")
    return saved["value"]


def read_passes(path: Path, checkpoint: Checkpoint) -> Found:
    """Linears of each pass whose input is another module's output."""
    for folder in pass_folders(path):
        ranked = PASSES_FOLDER.fullmatch(folder.name)
        facts = {"rank": int(ranked[3])} if ranked else {}
        for file in sorted(folder.iterdir()):
            numbered = PASS.fullmatch(file.name)
            if numbered is None:
                continue
            outputs = load(file)
            if not isinstance(outputs, dict):
                raise DatasetRefused(f"{file}: not a pass of SGLang's tensor dump.")
            for module, given, made in inputs_of_pass(outputs):
                yield from _linear(module, given, made, checkpoint, int(numbered[1]), facts)


def _linear(
    module: str, given: Any, made: Any, checkpoint: Checkpoint, step: int, facts: dict[str, Any]
) -> Found:
    if not isinstance(given, Tensor) or not isinstance(made, Tensor):
        return
    try:
        call = linear_call(module, given, made, checkpoint, step, FACTS | facts)
    except Skipped as reason:
        yield reason
        return
    if call is not None:
        yield call
