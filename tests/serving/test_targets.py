"""Which places an engine's release has for adapters to wrap, read from its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.core.machine import State
from kclab.serving import targets
from kclab.serving.targets import TARGETS, Target, engine_findings, has_target
from tests.conftest import Cli

SOURCE = """
raise RuntimeError("not to be run")

class Attention:
    def forward(self):
        def inner(): ...
    if True:
        def late(self): ...

async def serve(): ...
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An engine of one module."""
    root = tmp_path / "sglang"
    (root / "layers").mkdir(parents=True)
    (root / "layers" / "attention.py").write_text(SOURCE)
    monkeypatch.setattr(targets, "engine_folder", lambda: root)
    monkeypatch.setattr(targets, "package_version", lambda name: "9.9")
    return root


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("sglang.layers.attention:Attention", True),
        ("sglang.layers.attention:Attention.forward", True),
        ("sglang.layers.attention:Attention.late", True),
        ("sglang.layers.attention:serve", True),
        ("sglang.layers.attention:inner", False),
        ("sglang.layers.attention:Attention.backward", False),
        ("sglang.layers.none:Attention", False),
    ],
)
def test_targets_are_looked_up_without_running_anything(
    engine: Path, text: str, there: bool
) -> None:
    assert has_target(engine, Target.parse(text)) is there


def test_lacking_target_is_named(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, missing = "sglang.layers.attention:serve", "sglang.layers.attention:Gone.forward"
    monkeypatch.setattr(targets, "TARGETS", {"good": (there,), "bad": (there, missing)})
    found = {finding.name: finding for finding in engine_findings()}
    assert found["good"].state is State.OK
    assert found["bad"].state is State.BROKEN
    assert "lacks sglang.layers.attention.Gone.forward" in found["bad"].found


def test_doctor_shows_each_adapters_targets(engine: Path, invoke: Cli) -> None:
    output = invoke("doctor", "--engine", "sglang", "--format", "json")
    assert output.code == 4
    assert all(f'"{adapter}"' in output.out for adapter in TARGETS)
    assert "sglang" in output.out


def test_doctor_looks_at_engines_only_when_asked(engine: Path, invoke: Cli) -> None:
    assert '"deepseek"' not in invoke("doctor", "--format", "json").out
