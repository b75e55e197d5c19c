"""`kclab import`: one door for every kind of source.

A source is a path, or a URL whose files come into a folder beside the store first (see
`kclab.dataset.remote`); what happens then is the same.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kclab.core.urls import local_path
from kclab.dataset.dumps.kinds import DumpKind, dump_kind
from kclab.dataset.import_root import import_root
from kclab.dataset.import_store import find_database, import_store
from kclab.dataset.options import ImportOptions, ImportSummary, Progress
from kclab.dataset.roots import root_kind
from kclab.dataset.tree import LocalTree, Tree
from kclab.db.runs import ActiveRun, run
from kclab.db.store import Store


def import_source(
    store: Store,
    source: str,
    options: ImportOptions | None = None,
    *,
    progress: Progress | None = None,
) -> ImportSummary:
    """Merge what `source`, a path or a URL, names into `store`; see `import_path`.

    Raises EnvironmentLacking where a URL needs a package, credentials or a network that is not
    here, BadUsage for a bucket or folder that there is not.
    """
    path = local_path(source)
    if path is not None:
        return import_path(store, path, options, progress=progress)
    from kclab.dataset.remote.source import RemoteSource

    options = options or ImportOptions()
    report = progress or _silent
    remote = RemoteSource.open(store, source, report)
    with run(store, "import", _params(remote.origin, options)) as active, remote.tree() as tree:
        # What was fetched is a copy already: a second name for it is all the store needs.
        summary = _merge(active, tree, replace(options, link=True), report)
        remote.tell(summary)
        _finish(active, summary)
    return summary


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
    _kind(store, path)  # a path that is no dataset is refused before there is a run or a database
    with run(store, "import", _params(str(path), options)) as active:
        tree = LocalTree(path, str(path))
        summary = _merge(active, tree, options, progress or _silent)
        _finish(active, summary)
    return summary


def _silent(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody looks at."""


def _params(origin: str, options: ImportOptions) -> dict[str, Any]:
    return {"path": origin, **{k: v for k, v in asdict(options).items() if v}}


def _kind(store: Store, path: Path) -> Path | DumpKind | None:
    """The database to merge, the dump to convert, or None for a dataset folder.

    Raises BadUsage or DatasetRefused for anything else.
    """
    database = find_database(path)
    if database is not None and path.is_dir() and _same_file(database, store.database):
        database = None  # the working folder holds this store: look for a dataset beside it
    kind = database or dump_kind(path)
    if kind is None:
        root_kind(path)
    return kind


def _merge(
    active: ActiveRun, tree: Tree, options: ImportOptions, report: Progress
) -> ImportSummary:
    kind = _kind(active.store, tree.path)
    with _no_cycle_search():
        if isinstance(kind, DumpKind):
            return _import_dump(active, tree, kind, options, report)
        if kind is None:
            return import_root(active, tree, options, report)
        return import_store(active, tree, kind, options, report)


def _finish(active: ActiveRun, summary: ImportSummary) -> None:
    active.finish_as("failed" if summary.refused else "passed", _line(summary))


def _import_dump(
    active: ActiveRun, tree: Tree, kind: DumpKind, options: ImportOptions, report: Progress
) -> ImportSummary:
    from kclab.dataset.dumps.convert import convert_dump  # it needs torch

    with tempfile.TemporaryDirectory(prefix="kclab-dump-") as folder:
        left_out = convert_dump(kind, tree.path, options.model, Path(folder))
        unjudged = replace(options, include_unvalidated=True, link=False)
        converted = LocalTree(Path(folder), tree.origin)
        summary = import_root(active, converted, unjudged, report)
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
