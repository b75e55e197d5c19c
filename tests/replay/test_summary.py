"""What a replay adds up to: devices named, one exit code for shell and row."""

from __future__ import annotations

from kclab.core.errors import ExitCode
from kclab.db.verdicts import ReplayRow
from kclab.replay.summary import ReplaySummary


def row(status: str, device: str | None) -> ReplayRow:
    return ReplayRow("w", "double", status, 1, device=device)


def test_every_device_that_judged_is_named() -> None:
    summary = ReplaySummary()
    for device in ("cuda:0", "cpu", "cuda:0"):
        summary.add(row("passed", device), False)
    assert summary.device == "cpu, cuda:0"


def test_skipped_rows_name_no_device() -> None:
    summary = ReplaySummary()
    summary.add(row("passed", "cuda:0"), False)
    summary.add(row("skipped", "cpu"), False)
    assert summary.device == "cuda:0"


def exit_code(*found: tuple[str, bool]) -> ExitCode:
    summary = ReplaySummary()
    for status, lacking in found:
        summary.add(row(status, None), lacking)
    return summary.exit_code


def test_exit_code_tells_a_lacking_machine_from_a_failed_check() -> None:
    assert exit_code() is ExitCode.NOTHING
    assert exit_code(("error", True)) is ExitCode.ENVIRONMENT
    assert exit_code(("error", True), ("failed", False)) is ExitCode.CHECK_FAILED
