"""Import in one process, into an empty store: verified, against the unverified plain way."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.datasets import write_large_root, write_small_root
from benchmarks.measure import Result, Work, paired, seconds
from benchmarks.seed_way import import_capture
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions
from kclab.db.migrate import ensure_current
from kclab.db.store import Store

CHUNK = 1 << 20


def imports(scratch: Path, count: int, pairs: int) -> list[Result]:
    """`count` small workloads: first import both ways, then kclab's second import."""
    root = scratch / "small" / "root"
    write_small_root(root, count, validated=True)
    fresh = _fresh(scratch)

    def plain() -> float:
        destination = next(fresh)
        return seconds(lambda: import_capture(root, destination) and None)

    def ours() -> float:
        store = Store.at(next(fresh) / "kclab.db")
        ensure_current(store.database)
        return seconds(lambda: import_path(store, root) and None)

    first = paired(
        f"import {count:,} workloads, every byte verified",
        "plain way, nothing verified",
        "≥ 0.3",
        plain,
        ours,
        pairs=pairs,
    )
    known = Store.at(next(fresh) / "kclab.db")
    import_path(known, root)
    again = paired(
        "import the same again",
        "kclab's first import",
        "≥ 4",
        ours,
        lambda: seconds(lambda: import_path(known, root) and None),
        pairs=pairs,
    )
    shutil.rmtree(scratch)
    return [first, again]


def large_imports(scratch: Path, count: int, mebibytes: int, pairs: int) -> list[Result]:
    """`count` blobs of `mebibytes` MiB: linked against hashing alone, copied against both."""
    root = scratch / "large" / "root"
    write_large_root(root, count, mebibytes)
    files = sorted((root / "blob").rglob("*.safetensors"))
    fresh = _fresh(scratch)

    def copying() -> float:
        target = next(fresh)
        return _then_remove(target, lambda: _copy_and_hash(files, target))

    def ours(link: bool) -> float:
        target = next(fresh)
        store = Store.at(target / "kclab.db")
        return _then_remove(
            target, lambda: import_path(store, root, ImportOptions(link=link)) and None
        )

    size = f"{count * mebibytes / 1024:g} GiB of {mebibytes} MiB blobs"
    linked = paired(
        f"import {size}, linked",
        "sha256 on all cores",
        "≥ 0.8",
        lambda: seconds(lambda: hash_all(files)),
        lambda: ours(link=True),
        pairs=pairs,
    )
    copied = paired(
        f"import {size}, copied",
        "copy, then sha256 on all cores",
        "≥ 1/1.3 = 0.77",
        copying,
        lambda: ours(link=False),
        pairs=pairs,
    )
    shutil.rmtree(scratch)
    return [linked, copied]


def _copy_and_hash(files: list[Path], target: Path) -> None:
    """Copy, hash what was copied, and wait for the disk."""
    hash_all([Path(shutil.copyfile(file, target / file.name)) for file in files])
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    os.sync()


def hash_all(files: list[Path]) -> None:
    """sha256 of each file's bytes, a thread for each core."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_hash, files))


def _hash(path: Path) -> str:
    hasher, buffer = hashlib.sha256(), bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(view[:count])
    return hasher.hexdigest()


def _then_remove(target: Path, work: Work) -> float:
    started = time.perf_counter()
    work()
    taken = time.perf_counter() - started
    shutil.rmtree(target)
    return taken


def _fresh(scratch: Path) -> Iterator[Path]:
    for number in itertools.count():
        folder = scratch / f"target{number}"
        folder.mkdir(parents=True)
        yield folder
