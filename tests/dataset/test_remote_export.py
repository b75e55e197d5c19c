"""`kclab export s3://…` to a real local server: the way there and back, broken off and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclab.core.errors import BadUsage, CheckFailed, DatasetRefused
from kclab.dataset.exporting import export_destination, export_flashinfer_trace, export_rows
from kclab.dataset.importing import import_path, import_source
from kclab.dataset.remote.digests import etag
from kclab.dataset.remote.place import Place
from kclab.dataset.remote.upload import Upload
from kclab.db.store import Store
from tests.conftest import Cli
from tests.dataset.builder import RootBuilder, floats
from tests.dataset.conftest import Rows
from tests.dataset.s3_server import S3, killed

URL = "s3://bucket/team/run7"
MANIFEST = "team/run7/kclab/upload.json"


@pytest.fixture
def other(tmp_path: Path, empty_database: Path) -> Store:
    """A second store."""
    database = tmp_path / "other" / "kclab.db"
    database.parent.mkdir()
    database.write_bytes(empty_database.read_bytes())
    return Store.at(database)


def fill(store: Store, source: RootBuilder, count: int = 3) -> None:
    for step in range(count):
        source.double(step + 0.5, step=step)
    import_path(store, source.report().root)


def send(store: Store, url: str = URL) -> Upload:
    target = export_destination(store, url, lambda what, done, total: None)
    assert isinstance(target, Upload)
    export_flashinfer_trace(store, target)
    return target


def test_an_export_comes_back_whole_and_once(
    s3: S3, store: Store, other: Store, source: RootBuilder, rows: Rows
) -> None:
    fill(store, source)
    send(store)
    summary = import_source(other, URL)
    assert (summary.source, summary.workloads, summary.captures) == ("kclab export", 3, 3)
    query = "SELECT uuid FROM workload ORDER BY uuid"
    assert rows(query, at=other) == rows(query)
    assert other.blobs.read(floats(0.5).digest()).shape == (1,)
    again = import_source(other, URL)
    assert (again.added, again.blobs) == (0, 0)


def test_rows_alone_come_back_as_rows(
    s3: S3, store: Store, other: Store, source: RootBuilder
) -> None:
    fill(store, source)
    target = export_destination(store, URL, lambda what, done, total: None)
    export_rows(store, target)
    summary = import_source(other, URL)
    assert (summary.workloads, summary.absent) == (3, 6)


def test_a_finished_export_leaves_nothing_beside_the_store(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    fill(store, source)
    send(store)
    assert not (store.database.parent / "remote").exists()


def test_an_export_goes_only_where_nothing_is(s3: S3, store: Store, source: RootBuilder) -> None:
    fill(store, source)
    send(store)
    with pytest.raises(BadUsage, match="there is something already"):
        send(store)
    s3.put("mine/definitions/toy/double.json", b"{}")
    with pytest.raises(BadUsage, match="there is something already"):
        send(store, "s3://bucket/mine")
    assert s3.get("mine/definitions/toy/double.json") == b"{}"


def test_a_killed_export_goes_on_and_sends_nothing_twice(
    s3: S3, store: Store, other: Store, source: RootBuilder
) -> None:
    fill(store, source, 40)
    with killed(s3, "PUT", 50, "--db", store.database, "export", URL):
        there = {key for key in s3.listed() if key.endswith(".safetensors")}
        assert len(there) >= 50
        with pytest.raises(DatasetRefused, match="an export to it broke off"):
            import_source(other, URL)
        s3.requests.clear()
        target = send(store)
        sent = set(s3.asked("PUT", ".safetensors"))
        assert sent.isdisjoint(there)
        assert len(sent) + len(there) == 80
        assert target.sent == len(sent) + 4  # three files of rows, and the definition
        assert import_source(other, URL).workloads == 40


def test_what_another_export_left_is_not_mixed_with_this_one(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    fill(store, source)
    s3.put(MANIFEST, b'{"complete": false, "files": {}}')
    s3.put("team/run7/workloads/toy/stranger.jsonl", b"")
    with pytest.raises(BadUsage, match=r"stranger\.jsonl, left by another export"):
        send(store)


def test_an_object_of_equal_size_and_other_content_is_sent_again(
    s3: S3, store: Store, other: Store, source: RootBuilder
) -> None:
    fill(store, source)
    send(store)
    key = next(key for key in s3.listed() if key.endswith(".safetensors"))
    whole = s3.get(key)
    s3.put(key, whole[:-1] + b"\x55")
    s3.put(MANIFEST, b'{"complete": false, "files": {}}')
    s3.requests.clear()
    send(store)
    assert s3.asked("PUT", ".safetensors") == [key]
    assert s3.get(key) == whole


def test_an_export_counts_once_all_of_it_is_there(
    s3: S3, store: Store, source: RootBuilder, monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    fill(store, source)
    put = Place.put

    def lose_one(place: Place, file: Path, name: str) -> None:
        if name != "captures.jsonl":
            put(place, file, name)

    monkeypatch.setattr(Place, "put", lose_one)
    with pytest.raises(CheckFailed, match=r"captures\.jsonl: 0 of \d+ bytes are there"):
        send(store)
    assert json.loads(s3.get(MANIFEST))["complete"] is False
    assert rows("SELECT status FROM run ORDER BY id DESC LIMIT 1") == [("failed",)]


@pytest.mark.parametrize("change", [lambda data: data[:-20], lambda data: b"{" + data[1:]])
def test_an_altered_file_of_rows_is_refused_by_name(
    s3: S3, store: Store, other: Store, source: RootBuilder, rows: Rows, change: object
) -> None:
    fill(store, source)
    send(store)
    key = "team/run7/kclab/kclab.db"
    assert callable(change)
    s3.put(key, change(s3.get(key)))
    with pytest.raises(DatasetRefused, match=f"s3://bucket/{key}: .*cut short or altered"):
        import_source(other, URL)
    assert rows("SELECT count(*) FROM workload", at=other) == [(0,)]


def test_the_list_of_an_export_must_be_one(s3: S3, other: Store) -> None:
    s3.put(MANIFEST, b"[]")
    s3.put("team/run7/captures.jsonl", b"")
    with pytest.raises(DatasetRefused, match="not what kclab export writes"):
        import_source(other, URL)


def test_the_etag_of_a_large_file_is_that_of_its_parts(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 5 << 20  # the least that S3 takes
    monkeypatch.setattr("kclab.dataset.remote.digests.PART", part)
    monkeypatch.setattr("kclab.dataset.remote.place.PART", part)
    file = tmp_path / "large"
    place = Place(URL)
    for size in (0, 2 * part - 1, 2 * part, 2 * part + 1):
        file.write_bytes(bytes(size))
        place.put(file, "large")
        assert place.objects()["large"].version.strip('"') == etag(file)


def test_the_command_says_what_it_sent(
    s3: S3, source: RootBuilder, invoke: Cli, tmp_path: Path
) -> None:
    source.double(1)
    invoke("import", source.report().root)
    done = invoke("export", URL)
    assert (done.code, "objects sent  6" in done.out) == (0, True)
    assert f"written       {URL}" in done.out
    missing = invoke("export", "s3://no-such-bucket/x")
    assert (missing.code, "no such bucket" in missing.err) == (2, True)
    assert invoke("export", "hf://datasets/me/set").code == 2


def test_a_file_url_is_a_folder(store: Store, other: Store, source: RootBuilder) -> None:
    fill(store, source)
    folder = source.folder / "out put"
    target = export_destination(store, folder.as_uri(), lambda what, done, total: None)
    export_flashinfer_trace(store, target)
    assert import_source(other, folder.as_uri()).workloads == 3
