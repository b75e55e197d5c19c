"""Which places an engine's release has for adapters to wrap, read from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kclab.capture.adapters.watching import target
from kclab.core.machine import State
from kclab.serving import targets
from kclab.serving.release import Release
from kclab.serving.targets import Survey, engine_adapters, engine_findings
from tests.conftest import Cli

ATTENTION = """
raise RuntimeError("not to be run")
from sglang.layers.base import Base as Root
from .base import helper, gone
from torch import nn

class Attention(Root):
    scale: float = 1.0
    def forward(self):
        def inner(): ...
    if True:
        def late(self): ...

try:
    from other_kernels import gemm
except ImportError:
    async def serve(): ...
"""
BASE = """
class Base:
    def inherited(self): ...
def helper(): ...
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine of two modules."""
    root = tmp_path / "sglang"
    (root / "layers").mkdir(parents=True)
    (root / "layers" / "attention.py").write_text(ATTENTION)
    (root / "layers" / "base.py").write_text(BASE)
    (root / "layers" / "__init__.py").write_text("from sglang.layers.attention import Attention")
    monkeypatch.setattr(targets, "engine_folder", lambda: root)
    monkeypatch.setattr(targets, "package_version", lambda name: "9.9")
    return root


class ToyAdapter:
    """Wraps what a test says."""

    roots = ("sglang.layers.attention.Attention", "diffusers.Elsewhere")

    def __init__(self, *wanted: str, name: str = "toy", module: str = "sglang.layers.attention"):
        self.name, self.wanted, self.module = name, wanted, module

    def attach(self, tap: Any) -> None:
        tap.when_imported(self.module, lambda module: self._instrument(module, tap))

    def _instrument(self, module: Any, tap: Any) -> None:
        for text in self.wanted:
            owner, _, name = text.rpartition(".")
            tap.wrap(target(module, owner) if owner else module, name, None)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("Attention.forward", "sglang.layers.attention.Attention.forward"),
        ("Attention.late", "sglang.layers.attention.Attention.late"),
        ("Attention.inherited", "sglang.layers.attention.Attention.inherited"),
        ("serve", "sglang.layers.attention.serve"),
        ("helper", "sglang.layers.attention.helper"),
        ("gemm", "sglang.layers.attention.gemm"),
        ("Root.inherited", "sglang.layers.base.Base.inherited"),
    ],
)
def test_what_an_adapter_wraps_is_found_without_running_anything(
    engine: Path, wanted: str, found: str
) -> None:
    survey = Survey(Release("sglang", engine))
    survey.require(ToyAdapter(wanted))
    assert survey.found == ["sglang.layers.attention.Attention", found]
    assert not survey.lacking


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        ("Attention.backward", "sglang.layers.attention.Attention.backward"),
        ("inner", "sglang.layers.attention.inner"),
        ("Gone.forward", "sglang.layers.attention.Gone"),
        ("Root.gone", "sglang.layers.base.Base.gone"),
    ],
)
def test_what_a_release_lacks_is_named(engine: Path, wanted: str, lacking: str) -> None:
    survey = Survey(Release("sglang", engine))
    survey.require(ToyAdapter(wanted))
    assert survey.lacking == [lacking]


def test_lacking_module_and_root_are_named(engine: Path) -> None:
    adapter = ToyAdapter("serve", module="sglang.layers.none")
    adapter.roots = ("sglang.layers.attention.Model", "sglang.models.none.Model")
    survey = Survey(Release("sglang", engine))
    survey.require(adapter)
    assert survey.lacking == [*adapter.roots, "sglang.layers.none"]


def test_package_gives_what_it_takes_from_its_modules(engine: Path) -> None:
    survey = Survey(Release("sglang", engine))
    survey.require(ToyAdapter("Attention.forward", module="sglang.layers"))
    assert survey.found[1:] == ["sglang.layers.attention.Attention.forward"]


def test_finding_of_an_adapter_says_what_its_release_lacks(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = ToyAdapter("serve", name="good"), ToyAdapter("serve", "Gone.forward", name="bad")
    monkeypatch.setattr(targets, "engine_adapters", lambda: [good, bad])
    found = {finding.name: finding for finding in engine_findings()}
    assert (found["good"].state, found["good"].found) == (State.OK, "all 2 targets are there")
    assert found["bad"].state is State.BROKEN
    assert found["bad"].found == "9.9 lacks sglang.layers.attention.Gone"


def test_engines_adapters_are_those_with_a_root_in_it() -> None:
    names = [adapter.name for adapter in engine_adapters()]
    assert names == ["deepseek", "ltx", "minimax-h3", "qwen-image", "qwen-next"]


def test_doctor_shows_each_adapters_targets(engine: Path, invoke: Cli) -> None:
    output = invoke("doctor", "--engine", "sglang", "--format", "json")
    assert output.code == 4
    assert all(f'"{adapter.name}"' in output.out for adapter in engine_adapters())
    assert "sglang" in output.out


def test_doctor_looks_at_engines_only_when_asked(engine: Path, invoke: Cli) -> None:
    assert '"deepseek"' not in invoke("doctor", "--format", "json").out


def test_doctor_fails_where_the_engine_that_is_asked_about_is_not_here(
    monkeypatch: pytest.MonkeyPatch, invoke: Cli
) -> None:
    monkeypatch.setattr(targets, "engine_folder", lambda: None)
    output = invoke("doctor", "--engine", "sglang")
    assert output.code == 4
    assert "not installed here; pip install 'kclab[sglang]'" in " ".join(output.out.split())
