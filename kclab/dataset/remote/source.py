"""What a URL holds for an import, and the tree that it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kclab.core.errors import BadUsage, DatasetRefused, EnvironmentLacking
from kclab.dataset.dumps.kinds import DUMPED, PASSES_FOLDER
from kclab.dataset.options import ImportSummary, Progress
from kclab.dataset.remote.download import Download
from kclab.dataset.remote.folder import waiting_folder
from kclab.dataset.remote.manifest import Manifest
from kclab.dataset.remote.place import Place, RemoteObject
from kclab.dataset.remote.tree import RemoteTree
from kclab.db.store import Store

DATABASES = ("kclab/kclab.db", "kclab.db")
RECEIPTS = ("captures.jsonl", "results/captures.jsonl")
ROWS = re.compile(
    r"captures\.jsonl|results/(captures\.jsonl|replay\.json)|(workloads|traces)/.*\.jsonl"
    r"|(definitions|solutions)/.*\.json"
)
"""Files of a dataset folder that are read whatever the store has."""
FLASHINFER_DUMP = ("session.jsonl", "metadata.jsonl")
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(slots=True)
class RemoteSource:
    """A listed place, ready to be imported."""

    store: Store
    place: Place
    root: str
    """fsspec's path of the folder that was listed."""
    objects: dict[str, RemoteObject]
    rows: list[RemoteObject]
    """What is fetched before anything is decided."""
    database: str | None
    """The one file that the URL names."""
    report: Progress
    _tree: RemoteTree | None = None

    @classmethod
    def open(cls, store: Store, url: str, report: Progress) -> RemoteSource:
        """List what lies at `url`.

        Raises BadUsage where there is nothing or no dataset, EnvironmentLacking without package,
        credentials or network, DatasetRefused for an unfinished export or a key that leads out.
        """
        place = Place(url)
        root, database = place.root, None
        report("listing", 0, 0)
        objects = _as_written(place, place.objects())
        if not objects:
            root, database = _one_file(place)
            objects = place.objects(root)
        _require_closed(place, objects, database)
        rows = [objects[n] for n in ([database] if database else _rows(place, objects))]
        return cls(store, place, root, objects, rows, database, report)

    @property
    def origin(self) -> str:
        """What rows and messages call it; holds no secret."""
        return self.place.url

    @contextmanager
    def tree(self) -> Iterator[RemoteTree]:
        """The tree, its rows fetched; its copies go when the block ends well."""
        with waiting_folder(self.store, f"import of {self.origin}") as folder:
            tree = self._tree = self._grown(folder)
            with tree.named():
                tree.download.fetch(self.rows)
                if self.database is None and self.rows[0].name not in DATABASES:
                    self._fetch_sibling(folder)
                yield tree

    def _grown(self, folder: Path) -> RemoteTree:
        leaf = self.root.rpartition("/")[2]
        usable = PLAIN.fullmatch(leaf) and leaf != "definitions"
        base = folder.resolve() / "tree" / (leaf if usable else "root")
        base.mkdir(parents=True, exist_ok=True)
        download = Download(self.place, self.root, base, folder, self.report)
        path = base / self.database if self.database else base
        return RemoteTree(path, self.origin, base, self.objects, download)

    def _fetch_sibling(self, folder: Path) -> None:
        """`definitions/` beside a capture root, where this machine may look."""
        parent = self.place.parent()
        if parent is None:
            return
        path = f"{parent}/definitions"
        try:
            found = self.place.objects(path)
        except (BadUsage, EnvironmentLacking):
            return  # none there, or none for us
        target = folder.resolve() / "tree" / "definitions"
        Download(self.place, path, target, folder, self.report).fetch(
            one for one in found.values() if one.name.endswith(".json")
        )

    def tell(self, summary: ImportSummary) -> None:
        """Say in an import's summary what was fetched, and name its source."""
        tree = self._tree
        if tree is None:
            return
        summary.fetched, summary.fetched_bytes = tree.download.objects, tree.download.nbytes
        summary.warnings = [tree.renamed(text) for text in summary.warnings]
        summary.refused = tree.renamed_refusals(summary.refused)


def _one_file(place: Place) -> tuple[str, str]:
    """(folder, name) where the URL names a single object."""
    parent, _, name = place.root.rpartition("/")
    if place.is_object():
        if name.endswith(".db") and parent:
            return parent, name
        raise BadUsage(f"{place.url}: an object, neither a dataset folder nor a kclab.db.")
    raise BadUsage(f"{place.url}: there is nothing below it.")


def _require_closed(place: Place, objects: dict[str, RemoteObject], database: str | None) -> None:
    """Refuse a database that was copied while in use: its last rows lie in a second file."""
    for name in (database,) if database else DATABASES:
        log = objects.get(f"{name}-wal")
        if log is not None and log.size and name in objects:
            raise DatasetRefused(
                f"{place.url}: {log.name} lies beside the database, so it was copied while in use;"
                " kclab export writes a whole one."
            )


def _rows(place: Place, objects: dict[str, RemoteObject]) -> list[str]:
    """The names to fetch first; raises BadUsage where there is no dataset."""
    for name in DATABASES:
        if name in objects:
            return [name]
    if any(_is_dumped(name) for name in objects):
        return list(objects)
    rows = [name for name in objects if ROWS.fullmatch(name)]
    if any(name in RECEIPTS or name.startswith("workloads/") for name in rows):
        return rows
    raise BadUsage(
        f"{place.url}: no dataset; expected workloads/, captures.jsonl, results/captures.jsonl or"
        " a kclab.db in it."
    )


def _is_dumped(name: str) -> bool:
    folder, _, leaf = name.rpartition("/")
    return (
        name in FLASHINFER_DUMP
        or PASSES_FOLDER.fullmatch(folder.rpartition("/")[2]) is not None
        or (folder.count("/") == 0 and DUMPED.fullmatch(leaf) is not None)
    )


def _as_written(place: Place, objects: dict[str, RemoteObject]) -> dict[str, RemoteObject]:
    """The objects, with what an export's own list says of them; raises for one that broke off."""
    manifest = Manifest.read(place, objects)
    if manifest is None:
        return objects
    if not manifest.complete:
        raise DatasetRefused(
            f"{place.url}: an export to it broke off; give the same kclab export again, and it"
            " goes on where it stopped."
        )
    return {name: _expected(one, manifest) for name, one in objects.items()}


def _expected(one: RemoteObject, manifest: Manifest) -> RemoteObject:
    if one.name not in manifest.files:
        return one
    size, digest = manifest.files[one.name]
    return replace(one, written=size, digest=digest or one.digest)
