"""Importing a dataset folder: judge its rows, verify its bytes, then one transaction.

Everything slow happens before the transaction: rows are read and judged, files hashed and parked,
row values prepared. Then the files get their names, the file system is synced once, and the rows
are committed together. A crash at any moment leaves all of it or, but for nameless bytes, nothing.
"""

from __future__ import annotations

from pathlib import Path

from kclab.core.errors import BlobDamaged, NothingMatched
from kclab.core.times import now_us
from kclab.dataset.arrivals import Arrivals
from kclab.dataset.cases import Refusal, Root
from kclab.dataset.content import Content
from kclab.dataset.foreign import ForeignRow, add_foreign, read_foreign
from kclab.dataset.insertion import insert
from kclab.dataset.known import Known, absent_blobs, known_blobs, known_captures, known_sources
from kclab.dataset.options import ImportOptions, ImportSummary, Progress, RootRefused
from kclab.dataset.prepared import Prepared
from kclab.dataset.roots import read_root
from kclab.dataset.tree import Tree
from kclab.dataset.validation import accepted
from kclab.db.connection import writing
from kclab.db.runs import ActiveRun

MEND = "mend them, or take the good rows with --partial."
DISTRUST = "a root that holds such a path or file is taken with no row."


def import_root(
    active: ActiveRun, tree: Tree, options: ImportOptions, progress: Progress
) -> ImportSummary:
    """Bring a capture root, merged dataset or FlashInfer-Trace dataset into the run's store.

    Raises RootRefused (nothing was imported), BlobDamaged when `--verify` finds the store's own
    bytes wrong, NothingMatched for a root without rows.
    """
    path = tree.path
    root = read_root(path, options.definitions)
    summary = ImportSummary(root.kind.value, warnings=list(root.warnings))
    foreign = read_foreign(path, summary.refused, summary.warnings)
    cases = accepted(root, options.include_unvalidated, summary.refused, summary.warnings)
    _refuse(path, options, summary.refused)
    if not cases and not foreign and not summary.refused:
        raise NothingMatched(f"{path}: a {root.kind.value} without a single workload row.")
    arrivals = Arrivals(
        active.store.blobs,
        link=options.link,
        progress=lambda done, total: progress("reading files", done, total),
    )
    content = Content(root, cases, _known(active, root, options), arrivals, tree)
    try:
        prepared = content.prepare(summary)
        _refuse(path, options, summary.refused)
        _commit(active, tree.origin, options, prepared, foreign, arrivals, summary)
    finally:
        arrivals.discard()
    return summary


def _refuse(path: Path, options: ImportOptions, refused: list[Refusal]) -> None:
    if any(refusal.unsafe for refusal in refused):
        raise RootRefused(path, [r for r in refused if r.unsafe], DISTRUST)
    if refused and not options.partial:
        raise RootRefused(path, refused, MEND)


def _known(active: ActiveRun, root: Root, options: ImportOptions) -> Known:
    if options.rereads:
        return Known()
    captures = [case.capture_uuid for case in root.cases if case.receipt is not None]
    bare = {case.definition for case in root.cases if case.receipt is None}
    return Known(
        captures=known_captures(active.connection, captures),
        sources=known_sources(active.connection, bare) if bare else {},
        absent=absent_blobs(active.connection),
        blobs=lambda digests: known_blobs(active.connection, digests),
    )


def _commit(
    active: ActiveRun,
    origin: str,
    options: ImportOptions,
    prepared: Prepared,
    foreign: list[ForeignRow],
    arrivals: Arrivals,
    summary: ImportSummary,
) -> None:
    arrived = arrivals.arrived()
    vouched = known_blobs(active.connection, arrived)
    placing = [digest for digest in arrived if digest not in vouched]
    summary.repaired = arrivals.damaged(placing)
    if options.rereads:
        placing += _broken(active, origin, options, list(vouched), arrivals, summary)
    summary.blobs = len(placing)
    summary.nbytes = sum(arrived[digest].nbytes for digest in placing)
    arrivals.settle(placing, summary.nbytes)
    with writing(active.connection) as connection, arrivals.syncing():
        insert(connection, active.id, prepared, origin, summary)
        summary.foreign += add_foreign(connection, active.id, foreign)
        if options.rereads:
            connection.executemany(
                "UPDATE blob SET verified_us = ? WHERE sha256 = ?",
                [(now_us(), digest) for digest in arrived],
            )


def _broken(
    active: ActiveRun,
    origin: str,
    options: ImportOptions,
    vouched: list[str],
    arrivals: Arrivals,
    summary: ImportSummary,
) -> list[str]:
    """The store's own blobs that do not hold what their rows say, to be replaced."""
    broken = arrivals.missing(vouched) + arrivals.damaged(vouched)
    if broken and not options.repair:
        names = "\n".join(f"damaged blob {active.store.blobs.path(d)}" for d in broken)
        raise BlobDamaged(
            f"{names}\nreplace them from {origin} with --repair; nothing was changed."
        )
    summary.repaired += broken
    return broken
