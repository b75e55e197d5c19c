"""Images and logs of another store come along, verified; exports carry none of them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from kclab.blob.kept import KeptName
from kclab.core.errors import DatasetRefused
from kclab.dataset.exporting import export_flashinfer_trace, export_rows
from kclab.dataset.importing import import_path
from kclab.dataset.options import ImportOptions
from kclab.db.check import check
from kclab.db.connection import writing
from kclab.db.store import Store
from tests.dataset.builder import RootBuilder

IMAGES = (b"first image", b"second image")


@pytest.fixture
def other(tmp_path: Path, empty_database: Path) -> Store:
    """A store with a capture whose request brought two images, and the log of its run."""
    database = tmp_path / "other" / "kclab.db"
    database.parent.mkdir()
    shutil.copyfile(empty_database, database)
    store = Store.at(database)
    source = RootBuilder(tmp_path / "foreign")
    source.double(1, request={"prompt": "a teapot"})
    import_path(store, source.report().root)
    outputs = [
        {"sha256": name.sha256, "path": str(name)}
        for name in (store.files.keep(data, ".png") for data in IMAGES)
    ]
    with closing(store.write()) as connection, writing(connection):
        connection.execute("UPDATE request SET response = ?", (json.dumps({"outputs": outputs}),))
        (uuid,) = connection.execute("SELECT uuid FROM run").fetchone()
    log = store.run_folders / uuid / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("ready")
    return store


def names(store: Store) -> list[KeptName]:
    return sorted(store.files.present())


def contents(store: Store) -> set[bytes]:
    return {store.files.path(name).read_bytes() for name in names(store)}


def suffixes(folder: Path) -> set[str]:
    return {path.suffix for path in folder.rglob("*") if path.is_file()}


def absent(store: Store) -> int:
    return len(check(store).of("absent"))


def test_images_and_logs_come_along_once(store: Store, other: Store) -> None:
    summary = import_path(store, other.database.parent)
    assert summary.images == 2 and contents(store) == set(IMAGES)
    logs = list(store.run_folders.glob("*/server.log"))
    assert [log.read_text() for log in logs] == ["ready"]
    report = check(store)
    assert report.faults == [] and report.files == 2
    assert import_path(store, other.database.parent).images == 0


@pytest.mark.parametrize("lost", [True, False], ids=["missing", "damaged"])
def test_a_bad_image_is_refused_and_nothing_comes(store: Store, other: Store, lost: bool) -> None:
    path = other.files.path(names(other)[0])
    path.unlink() if lost else path.write_bytes(b"first imagf")
    with pytest.raises(DatasetRefused, match=r"image files/[^\n]*\n.*nothing was imported"):
        import_path(store, other.database.parent)
    assert names(store) == [] and not list(store.blobs.present())

    summary = import_path(store, other.database.parent, ImportOptions(partial=True))
    assert (summary.images, len(summary.refused)) == (1, 1)
    assert absent(store) == 1 and not check(store).blobs_damaged


def test_an_image_that_arrives_later_completes_the_row(store: Store, other: Store) -> None:
    path = other.files.path(names(other)[0])
    data = path.read_bytes()
    path.unlink()
    import_path(store, other.database.parent, ImportOptions(partial=True))
    path.write_bytes(data)
    assert import_path(store, other.database.parent).images == 1
    assert check(store).faults == []


def test_repair_replaces_a_damaged_image(store: Store, other: Store) -> None:
    import_path(store, other.database.parent)
    store.files.path(names(store)[0]).write_bytes(b"x")
    assert import_path(store, other.database.parent).images == 0
    import_path(store, other.database.parent, ImportOptions(repair=True))
    assert contents(store) == set(IMAGES) and check(store).faults == []


def test_no_link_is_followed(store: Store, other: Store, tmp_path: Path) -> None:
    first, second = (other.files.path(name) for name in names(other))
    secret = tmp_path / "secret"
    secret.write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to(secret)
    with pytest.raises(DatasetRefused, match=r"symbolic link"):
        import_path(store, other.database.parent, ImportOptions(partial=True))
    shutil.rmtree(second.parent)
    assert names(store) == []


def test_a_log_behind_a_link_stays_out(store: Store, other: Store, tmp_path: Path) -> None:
    (log,) = other.run_folders.glob("*/server.log")
    (tmp_path / "secret").write_text("secret")
    log.unlink()
    log.symlink_to(tmp_path / "secret")
    with pytest.raises(DatasetRefused, match="symbolic link"):
        import_path(store, other.database.parent)
    assert not store.run_folders.exists()


def test_a_rows_export_leaves_images_out_and_says_so(
    store: Store, other: Store, tmp_path: Path
) -> None:
    export_rows(other, tmp_path / "out")
    assert not {".png", ".log"} & suffixes(tmp_path / "out")
    told = check(Store.at(tmp_path / "out" / "kclab.db")).of("absent")
    assert {fault.name for fault in told} >= {str(name) for name in names(other)}
    summary = import_path(store, tmp_path / "out")
    assert summary.images == 0 and names(store) == [] and not check(store).blobs_damaged


def test_a_trace_export_leaves_images_and_logs_out(
    store: Store, other: Store, tmp_path: Path
) -> None:
    export_flashinfer_trace(other, tmp_path / "trace")
    assert not {".png", ".log"} & suffixes(tmp_path / "trace")
    import_path(store, tmp_path / "trace")
    assert names(store) == [] and not check(store).blobs_damaged


def test_redaction_leaves_no_word_of_images(other: Store, tmp_path: Path) -> None:
    digests = [name.sha256.encode() for name in names(other)]
    export_rows(other, tmp_path / "plain")
    export_rows(other, tmp_path / "out", redact=True)
    plain, redacted = ((tmp_path / d / "kclab.db").read_bytes() for d in ("plain", "out"))
    assert all(digest in plain for digest in digests)
    assert not any(digest in redacted for digest in digests)
