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


def test_exit_code_tells_a_lacking_machine_from_a_failed_check() -> None:
    assert ReplaySummary().exit_code == ExitCode.NOTHING
    summary = ReplaySummary()
    summary.add(row("error", None), True)
    assert summary.exit_code == ExitCode.ENVIRONMENT
    summary.add(row("failed", "cpu"), False)
    assert summary.exit_code == ExitCode.CHECK_FAILED
