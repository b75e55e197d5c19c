"""A FlashInfer level-10 dump's folders: what was called, with which arguments.

The format is that of `flashinfer/api_logging.py`, checked at commit 008a2836 (2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kclab.core.errors import DatasetRefused
from kclab.dataset.dumps.tensor_files import load_tensors


def call_folders(path: Path) -> list[Path]:
    """A folder for each call of a dump, in its order; `path` may be one call's."""
    inside = path if (path / "metadata.jsonl").is_file() else None
    calls = [inside] if inside else sorted(f.parent for f in path.glob("*/metadata.jsonl"))
    return [folder for call in calls for folder in _replays(call) or [call]]


def _replays(call: Path) -> list[Path]:
    """The snapshots of a call inside a CUDA graph; the call's own folder repeats the last."""
    return sorted(f.parent for f in call.glob("graph_flushes/flush_*/metadata.jsonl"))


def unfinished(metadata: Mapping[str, Any]) -> str:
    """Why a call has no results."""
    if metadata.get("execution_status") == "graph_capture_pending_flush":
        return "inside a CUDA graph that was never replayed"
    return "it did not return"


def read_metadata(folder: Path) -> dict[str, Any]:
    """The last, most complete record of a call; raises DatasetRefused for a damaged file."""
    file = folder / "metadata.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").strip().splitlines()
        record = json.loads(lines[-1])
    except (OSError, ValueError, IndexError) as error:
        raise DatasetRefused(f"{file}: cannot be read ({error}).") from error
    if not isinstance(record, dict):
        raise DatasetRefused(f"{file}: an object a line was expected.")
    return record


def object_of(metadata: Mapping[str, Any]) -> tuple[int, int]:
    """(process, object) of a method's call."""
    return int(metadata.get("process_id", 0)), int(metadata.get("self_id") or 0)


def read_arguments(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """By the function's own names, tensors and plain values alike."""
    tensors: dict[str, Any] = dict(load_tensors(folder / "inputs"))
    told = metadata.get("input_metadata", {})
    # Tensors inside of lists have keys of their own, `arg_1__0`.
    inner = {key for value in told.values() for key in _keys_in(value)}
    given = {key: _restored(value, tensors) for key, value in told.items()}
    given |= {key: tensor for key, tensor in tensors.items() if key not in inner}
    names = _parameters(str(metadata.get("function_signature", "")))
    shift = 1 if names[:1] == ["self"] and isinstance(given.get("arg_0"), Tensor) else 0
    found: dict[str, Any] = {}
    for key, value in given.items():
        position = re.fullmatch(r"arg_(\d+)", key)
        if position is not None:
            index = int(position[1]) + shift
            found[names[index] if index < len(names) else key] = value
        else:
            found[key.removeprefix("kwarg_")] = value
    return found


def _restored(value: Any, tensors: Mapping[str, Any]) -> Any:
    """A value out of the metadata, as it was: lists with the tensors in them, enums as text."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "torch.Tensor":
        return tensors.get(str(value.get("tensor_key")), value)
    if kind in ("tuple", "list") and not value.get("truncated"):
        return [_restored(item, tensors) for item in value.get("items", [])]
    if kind == "enum":
        return str(value.get("name")).rpartition(".")[2]
    return value.get("value", value) if kind == "torch.dtype" else value


def _keys_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value.get("type") == "torch.Tensor":
        yield str(value.get("tensor_key"))
    elif isinstance(value, dict):
        for item in value.get("items", []):
            yield from _keys_in(item)


def _parameters(signature: str) -> list[str]:
    """Names in order, out of a signature's text; commas in brackets belong to types."""
    depth, names, word = 0, [], ""
    for letter in signature.partition("(")[2]:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 or (letter == "," and not depth):
            names.append(re.split(r"[:=]", word)[0].strip(" *"))
            word = ""
        if depth < 0:
            break
        word += letter if letter != "," or depth else ""
    return [name for name in names if name and name != "/"]
