"""The pinned release has every place that adapters wrap."""

from __future__ import annotations

import pytest

from kclab.core.machine import State
from kclab.serving.targets import engine_adapters, engine_findings

pytestmark = pytest.mark.engines


def test_installed_release_has_every_target() -> None:
    found = {finding.name: finding for finding in engine_findings()}
    assert found.keys() == {"release", *(adapter.name for adapter in engine_adapters())}
    assert [f"{f.name}: {f.found}" for f in found.values() if f.state is not State.OK] == []
