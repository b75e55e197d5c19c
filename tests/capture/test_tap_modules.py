"""Names of modules from frames, adapters by name, and telling when a module is imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kclab.capture.adapters import load_adapters
from kclab.capture.imports import when_imported
from kclab.core.errors import BadUsage

from .conftest import Tapped

X = torch.randn(3, 4)


class Layer(nn.Module):
    """Multiplies in a function that is no module's, and calls its child directly."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5, bias=False)
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return multiply(self.first.forward(x), self.weight)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


class Model(nn.Module):
    """Holds a layer twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer()])
        self.alias = self.layers[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.alias(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("root", [None, "Model"])
def test_call_is_named_by_its_innermost_module(tapped: Tapped, root: str | None) -> None:
    recorder = tapped(root=root)
    Model()(X)
    assert [c.call.module_path for c in recorder.captures] == ["layers.0.first", "layers.0"]


def test_call_outside_any_module_has_no_path(tapped: Tapped) -> None:
    recorder = tapped()
    multiply(X, torch.randn(6, 4))
    assert [c.call.module_path for c in recorder.captures] == [None]


def test_lone_module_is_named_by_its_class(tapped: Tapped) -> None:
    recorder = tapped()
    nn.Linear(4, 5, bias=False)(X)
    assert [c.call.module_path for c in recorder.captures] == ["Linear"]


def test_frame_that_reads_its_locals_finds_them_as_they_were(tapped: Tapped) -> None:
    class Reader(Layer):
        def forward(self, x: Tensor) -> Any:
            taken = locals()
            later = super().forward(x)
            return sorted(taken), later

    recorder = tapped()
    names, _ = Reader()(X)
    assert names == ["__class__", "self", "x"]
    assert recorder.errors == []


def test_unknown_adapter_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadUsage, match=r"no adapter 'tpu'; there are .*qwen-image, .*torch"):
        load_adapters(["torch", "tpu"])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported yet."""
    (tmp_path / "kclab_late.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kclab_late", raising=False)
    return "kclab_late"


def test_import_is_told_once_the_module_is_whole(module: str) -> None:
    told: list[int] = []
    when_imported(module, lambda imported: told.append(imported.value))
    when_imported(module, lambda imported: told.append(imported.value + 1))
    assert told == []
    importlib.import_module(module)
    assert sorted(told) == [1, 2]
    when_imported(module, lambda imported: told.append(imported.value + 2))
    assert sorted(told) == [1, 2, 3]


def test_waiting_for_an_import_can_be_given_up(module: str) -> None:
    told: list[Any] = []
    before = list(sys.meta_path)
    give_up = when_imported(module, told.append)
    give_up()
    assert sys.meta_path == before
    importlib.import_module(module)
    assert told == []
