"""`kclab import`: one door for every kind of source."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from kclab.dataset.dumps.kinds import DumpKind, dump_kind
from kclab.dataset.import_root import import_root
from kclab.dataset.import_store import find_database, import_store
from kclab.dataset.options import ImportOptions, ImportSummary, Progress
from kclab.dataset.roots import root_kind
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store


def import_path(
    store: Store,
    path: Path,
    options: ImportOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ImportSummary:
    """Merge what lies at `path` into `store`, by content, nothing twice.

    Raises RootRefused (and changes nothing) when a row is refused and `options.partial` is not
    set, BadUsage for a path that is no dataset, NothingMatched for one without rows.
    """
    options = options or ImportOptions()
    params = {"path": str(path), **{k: v for k, v in asdict(options).items() if v}}
    report = progress or (lambda what, done, total: None)
    database = find_database(path)
    if database is not None and path.is_dir() and _same_file(database, store.database):
        database = None  # the working folder holds this store: look for a dataset beside it
    dumped = dump_kind(path) if database is None else None
    if database is None and dumped is None:
        root_kind(path)  # a path that is no dataset is refused before there is a run or a database
    with run(store, "import", params) as active, _no_cycle_search():
        if dumped is not None:
            summary = _import_dump(active, path, dumped, options, report)
        elif database is None:
            summary = import_root(active, path, options, report)
        else:
            summary = import_store(active, path, database, options, report)
        active.finish_as("failed" if summary.refused else "passed", _line(summary))
    return summary


def _import_dump(
    active: ActiveRun, path: Path, kind: DumpKind, options: ImportOptions, report: Progress
) -> ImportSummary:
    from kclab.dataset.dumps.convert import convert_dump  # it needs torch

    with tempfile.TemporaryDirectory(prefix="kclab-dump-") as folder:
        left_out = convert_dump(kind, path, options.model, Path(folder))
        unjudged = replace(options, include_unvalidated=True, link=False)
        summary = import_root(active, Path(folder), unjudged, report, origin=path)
    summary.source = kind.value
    summary.warnings = [f"left out: {reason}." for reason in left_out] + summary.warnings
    return summary


def _same_file(first: Path, second: Path) -> bool:
    return second.exists() and first.samefile(second)


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """An import makes many objects and no cycles: looking for them costs a fifth of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _line(summary: ImportSummary) -> str:
    parts = [f"{summary.added} rows added", f"{summary.known} known"]
    if summary.refused:
        parts.append(f"{len(summary.refused)} refused")
    return ", ".join(parts)
