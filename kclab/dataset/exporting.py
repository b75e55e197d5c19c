"""`kclab export`: a folder that appears whole or not at all; or one that is sent to a URL."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kclab.core.errors import BadUsage
from kclab.core.units import counted
from kclab.core.urls import local_path
from kclab.dataset.export_blobs import BlobCopier
from kclab.dataset.export_rows import Selection, copy_rows, mark_absent
from kclab.dataset.export_trace import ROWS, TraceSummary, TraceWriter
from kclab.dataset.options import Progress
from kclab.dataset.validation import LAST_STATUS
from kclab.db.connection import require_current
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store

if TYPE_CHECKING:
    from kclab.dataset.remote.upload import Upload


def export_flashinfer_trace(
    store: Store,
    destination: Path | Upload,
    selection: Selection | None = None,
    *,
    with_baseline_solutions: bool = False,
    redact: bool = False,
) -> TraceSummary:
    """Write the selected captures as a FlashInfer-Trace dataset; see `export_trace`.

    Raises BadUsage when `destination` holds something, NothingMatched for an empty selection,
    BlobDamaged or BlobAbsent when the store's own bytes fail.
    """
    selection = selection or Selection()
    with _exporting(store, destination, "flashinfer-trace") as (root, active):
        rows = root / ROWS
        rows.parent.mkdir()
        copy_rows(store.database, rows, selection, redacted=redact, without_run=active.uuid)
        with closing(sqlite3.connect(rows)) as connection:
            copier = BlobCopier(store.blobs, link=not isinstance(destination, Path))
            writer = TraceWriter(root, connection, copier, redact)
            writer.write(with_baseline_solutions)
            writer.summary.unproven = _unproven(connection)
        active.summary = _line(writer.summary, destination)
    return writer.summary


def export_rows(
    store: Store,
    destination: Path | Upload,
    selection: Selection | None = None,
    *,
    redact: bool = False,
) -> TraceSummary:
    """Write a store without bytes: all selected rows, every blob marked as elsewhere.

    Raises as `export_flashinfer_trace`.
    """
    selection = selection or Selection()
    with _exporting(store, destination, "rows") as (root, active):
        rows = root / "kclab.db"
        copy_rows(store.database, rows, selection, redacted=redact, without_run=active.uuid)
        origin = "the store that it came from" if redact else str(store.database.resolve())
        mark_absent(rows, f"these rows came without bytes; kclab import {origin}")
        with closing(sqlite3.connect(rows)) as connection:
            counts = connection.execute(
                "SELECT (SELECT count(*) FROM definition), (SELECT count(*) FROM workload),"
                " (SELECT count(*) FROM capture)"
            ).fetchone()
        summary = TraceSummary(*counts)
        active.summary = _line(summary, destination)
    return summary


def _line(summary: TraceSummary, destination: Path | Upload) -> str:
    name = destination if isinstance(destination, Path) else destination.name
    return f"{counted(summary.workloads, 'workload')} written to {name}"


def export_destination(store: Store, text: str, report: Progress) -> Path | Upload:
    """Where a path or a URL says that an export goes.

    Raises BadUsage for a place that holds something, EnvironmentLacking where a URL needs a
    package, credentials or a network that is not here.
    """
    path = local_path(text)
    if path is not None:
        return path
    from kclab.dataset.remote.upload import Upload

    require_current(store.database)
    return Upload.to(store, text, report)


@contextmanager
def _exporting(
    store: Store, destination: Path | Upload, form: str
) -> Iterator[tuple[Path, ActiveRun]]:
    """A new folder and a run row for the export.

    Yields the folder, and the run, which does not export itself.
    """
    require_current(store.database)
    if isinstance(destination, Path):
        _require_new(destination)
        name, folder = str(destination), _new_folder(destination)
    else:
        name, folder = destination.name, destination.folder()
    with run(store, "export", {"path": name, "format": form}) as active, folder as root:
        yield root, active


def _require_new(destination: Path) -> None:
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise BadUsage(f"{destination}: there is something already; name a new or empty folder.")


@contextmanager
def _new_folder(destination: Path) -> Iterator[Path]:
    """A temporary sibling of `destination` that takes its name at the end of the block."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}-{os.urandom(4).hex()}")
    temporary.mkdir()
    try:
        yield temporary
        if destination.is_dir():
            destination.rmdir()
        temporary.rename(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unproven(rows: sqlite3.Connection) -> int:
    (count,) = rows.execute(
        f"SELECT count(*) FROM capture c WHERE {LAST_STATUS} IS NOT 'passed'"
        " AND EXISTS(SELECT 1 FROM capture_output o WHERE o.capture_id = c.id)"
    ).fetchone()
    return int(count)
