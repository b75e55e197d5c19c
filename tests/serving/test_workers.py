"""What is said while workers store what they copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from kclab.capture.control import ControlFolder, process_key
from kclab.core.times import now_us
from kclab.serving import workers as module
from kclab.serving.workers import Workers


class Enough(Exception):
    """Ends the wait."""


def test_waiting_for_the_store_says_how_much_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAYS_EVERY_SECONDS", 0)
    control, this = ControlFolder(tmp_path / "run"), process_key()
    control.create()
    control.write_worker(this, {"state": "armed", "acknowledged_us": now_us()})
    progress = control.open_progress(this)
    progress.handed(7)
    progress.stored(3)
    said: list[str] = []

    def watch() -> None:
        if said:
            raise Enough

    with pytest.raises(Enough):
        Workers(control, list).drain(watch, told=said.append)
    assert said == ["the workers store what they copied: 4 of 7 captures are left"]
