"""Tensors out of a dump's files, without ever running what a pickle says."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kclab.core.errors import DatasetRefused


def load(path: Path) -> Any:
    """What torch saved at `path`, tensors and plain values only.

    Raises DatasetRefused for a file that holds anything else, or is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetRefused(f"{path}: not a file of plain tensors ({first}).") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name, of `<path>.safetensors` or `<path>.pt`; none where neither is there."""
    safe, torch_file = path.with_suffix(".safetensors"), path.with_suffix(".pt")
    if safe.is_file():
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(safe)
        except (SafetensorError, OSError) as error:
            raise DatasetRefused(f"{safe}: damaged ({error}).") from error
    if not torch_file.is_file():
        return {}
    found = load(torch_file)
    if not isinstance(found, dict):
        raise DatasetRefused(f"{torch_file}: a dictionary of tensors was expected.")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""How SGLang joins a checkpoint's linears, by the last part of the module's name."""


class Checkpoint:
    """A model folder's weights, read one at a time."""

    def __init__(self, folder: Path):
        self._files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            for name in self._names(file):
                self._files[name] = file
        if not self._files:
            raise DatasetRefused(f"{folder}: no *.safetensors in it, so no weights.")

    @staticmethod
    def _names(file: Path) -> list[str]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as opened:
                return list(opened.keys())
        except (SafetensorError, OSError) as error:
            raise DatasetRefused(f"{file}: damaged ({error}).") from error

    def parameter(self, module: str, kind: str) -> Tensor | None:
        """`module.weight` or `.bias`, joined where SGLang joins it; None where there is none."""
        head, _, last = module.rpartition(".")
        parts = [f"{head}.{part}.{kind}" for part in FUSED.get(last, (last,))]
        if any(part not in self._files for part in parts):
            return None
        return torch.cat([self._read(part) for part in parts])

    def _read(self, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._files[name], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor
