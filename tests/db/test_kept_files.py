"""Images and run folders beside a database: checked by name, collected when nothing uses them."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from kclab.blob.kept import KeptName
from kclab.core.errors import BlobDamaged
from kclab.db.check import Fault, check
from kclab.db.connection import writing
from kclab.db.garbage import find_garbage, remove_garbage
from kclab.db.kept_files import mark_elsewhere, named_files
from kclab.db.runs import run
from kclab.db.store import Store
from tests.conftest import Cli
from tests.db.filled import fill

HOUR_US = 3_600_000_000
IMAGE = b"an image"


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store, examples=2)
    return store


def answer(store: Store, data: bytes = IMAGE) -> KeptName:
    """Keep an image, and name it in the first request."""
    name = store.files.keep(data, ".png")
    response = {"outputs": [{"sha256": name.sha256, "path": str(name), "width": 1}]}
    with closing(store.write()) as connection, writing(connection):
        connection.execute("UPDATE request SET response = ? WHERE id = 1", (json.dumps(response),))
    return name


def age(path: Path, hours: float = 2) -> None:
    stat = path.stat()
    os.utime(path, (stat.st_atime - hours * 3600, stat.st_mtime - hours * 3600))


def clean(store: Store) -> int:
    return remove_garbage(store, find_garbage(store, HOUR_US)).kept


def faults(store: Store) -> list[tuple[str, str]]:
    return [(fault.kind, fault.name) for fault in check(store).faults]


def test_a_kept_file_is_named_by_its_bytes(store: Store) -> None:
    name = store.files.keep(IMAGE, ".png")
    digest = hashlib.sha256(IMAGE).hexdigest()
    assert str(name) == f"files/{digest[:2]}/{digest[2:]}.png"
    assert store.files.path(name).read_bytes() == IMAGE
    assert list(store.files.present()) == [name] == [KeptName.parse(str(name))]
    assert list(store.files.leftovers()) == []


def test_a_damaged_file_is_replaced_by_the_next_that_keeps_it(store: Store) -> None:
    path = store.files.path(store.files.keep(IMAGE, ".png"))
    path.write_bytes(b"other")
    store.files.keep(IMAGE, ".png")
    assert path.read_bytes() == IMAGE


def test_a_link_in_a_kept_files_place_is_not_followed(store: Store, tmp_path: Path) -> None:
    name = store.files.keep(IMAGE, ".png")
    path = store.files.path(name)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(BlobDamaged, match="symbolic link"):
        store.files.verify(name)


@pytest.mark.parametrize("place", ["files/../x.png", "/files/ab/x.png", "images/ab/c.png", "x"])
def test_other_paths_are_no_kept_files(place: str) -> None:
    assert KeptName.parse(place) is None


def test_a_sound_image_is_hashed(filled: Store) -> None:
    before = check(filled)
    answer(filled)
    report = check(filled)
    assert report.faults == [] and (before.files, report.files) == (0, 1)
    assert report.nbytes == before.nbytes + len(IMAGE)


def test_damaged_and_missing_images_are_named(filled: Store, invoke: Cli) -> None:
    name = answer(filled)
    path = filled.files.path(name)
    path.write_bytes(b"an imagf")
    assert faults(filled) == [("damaged", str(name))]
    path.unlink()
    assert faults(filled) == [("missing", str(name))]
    output = invoke("--db", filled.database, "db", "check")
    assert output.code == 1 and str(name)[:60] in output.out


def test_an_image_that_is_said_to_be_elsewhere_is_absent_not_missing(filled: Store) -> None:
    name = answer(filled)
    filled.files.path(name).unlink()
    with closing(filled.write()) as connection, writing(connection):
        mark_elsewhere(connection)
        assert named_files(connection) == {name: True}
    assert check(filled).faults == [Fault("absent", str(name), "its bytes are elsewhere")]
    assert not check(filled).blobs_damaged


def test_files_that_no_request_names_are_told(filled: Store) -> None:
    stranger = filled.files.keep(b"stranger", ".png")
    half = filled.files.path(stranger).with_name(".half.tmp")
    half.write_bytes(b"h")
    assert faults(filled) == [("unreferenced", str(stranger)), ("leftover", str(half))]


def test_old_files_that_nothing_names_go_and_the_others_stay(filled: Store, invoke: Cli) -> None:
    used = answer(filled)
    strangers = [filled.files.keep(data, ".png") for data in (b"old", b"young")]
    half = filled.files.path(used).with_name(".half.tmp")
    half.write_bytes(b"h")
    for path in (filled.files.path(used), filled.files.path(strangers[0]), half):
        age(path)
    listed = invoke("--db", filled.database, "db", "gc")
    assert str(strangers[0]) in listed.out and str(strangers[1]) not in listed.out
    assert filled.files.path(strangers[0]).exists()

    assert clean(filled) == 2
    assert set(filled.files.present()) == {used, strangers[1]}
    assert not half.exists()


def test_a_file_that_became_young_or_named_since_the_listing_stays(filled: Store) -> None:
    names = [filled.files.keep(data, ".png") for data in (b"again", b"named")]
    for name in names:
        age(filled.files.path(name))
    garbage = find_garbage(filled, HOUR_US)
    assert set(garbage.kept.files) == set(names)

    filled.files.keep(b"again", ".png")
    answer(filled, b"named")
    age(filled.files.path(names[1]))
    assert remove_garbage(filled, garbage).kept == 0
    assert set(filled.files.present()) == set(names)


def test_the_log_goes_with_its_run(filled: Store) -> None:
    with closing(filled.read()) as connection:
        uuid = connection.execute("SELECT uuid FROM run").fetchone()[0]
    gone, foreign = "01980000-0000-7000-8000-000000000000", "my notes"
    for folder in (uuid, gone, foreign):
        log = filled.run_folders / folder / "server.log"
        log.parent.mkdir(parents=True)
        log.write_text("ready")
        age(log)
        age(log.parent)
    assert clean(filled) == 1
    assert {path.name for path in filled.run_folders.iterdir()} == {uuid, foreign}


def test_a_log_that_is_being_written_stays(filled: Store) -> None:
    log = filled.run_folders / "01980000-0000-7000-8000-000000000000" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("ready")
    age(log.parent)
    assert clean(filled) == 0 and log.exists()


def test_nothing_younger_than_a_living_run_goes(filled: Store) -> None:
    with run(filled, "capture", {}):
        stranger = filled.files.keep(b"stranger", ".png")
        assert find_garbage(filled, 0).kept.files == ()
    age(filled.files.path(stranger))
    assert find_garbage(filled, 0).kept.files == (stranger,)
