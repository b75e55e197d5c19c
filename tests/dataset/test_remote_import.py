"""`kclab import s3://…` from a real local server: what comes, what is refused, what is resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import s3fs

from kclab.core.errors import BadUsage, DatabaseBusy, DatasetRefused, EnvironmentLacking
from kclab.dataset.importing import import_source
from kclab.dataset.options import ImportOptions, ImportSummary, RootRefused
from kclab.dataset.remote.folder import waiting_folder
from kclab.dataset.remote.place import Place
from kclab.db.store import Store
from tests.conftest import Cli
from tests.dataset.builder import RootBuilder, floats
from tests.dataset.conftest import Rows
from tests.dataset.s3_server import S3, killed

URL = "s3://bucket/case/root"


def upload(s3: S3, source: RootBuilder, to: str = "case") -> None:
    """The whole folder as it lies on disk, definitions beside the root."""
    for path in source.folder.rglob("*"):
        if path.is_file():
            s3.put(f"{to}/{path.relative_to(source.folder).as_posix()}", path.read_bytes())


def fill(source: RootBuilder, count: int = 3) -> RootBuilder:
    for step in range(count):
        source.double(step + 1.5, step=step)
    return source.report()


def remains(store: Store) -> list[Path]:
    folder = store.database.parent / "remote"
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


def test_a_capture_root_comes_as_it_comes_from_a_folder(
    s3: S3, store: Store, source: RootBuilder, rows: Rows
) -> None:
    upload(s3, fill(source))
    summary = import_source(store, URL)
    assert (summary.source, summary.workloads, summary.captures) == ("capture root", 3, 3)
    assert rows("SELECT count(*) FROM blob WHERE present") == [(6,)]
    assert rows("SELECT DISTINCT origin FROM definition") == [(URL,)]
    assert store.blobs.read(floats(1.5).digest()).shape == (1,)


def test_a_finished_import_leaves_no_copies(s3: S3, store: Store, source: RootBuilder) -> None:
    upload(s3, fill(source))
    import_source(store, URL)
    assert not (store.database.parent / "remote").exists()


def test_importing_again_adds_nothing_and_fetches_no_tensor(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    upload(s3, fill(source))
    import_source(store, URL)
    s3.requests.clear()
    summary = import_source(store, URL)
    assert (summary.added, summary.known) == (0, 3)
    assert s3.asked("GET", ".safetensors") == []


def test_only_tensors_that_the_store_lacks_are_fetched(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    upload(s3, fill(source))
    import_source(store, URL)
    source.double(77, step=9)
    source.double(1.5, step=10)
    upload(s3, source.report())
    s3.requests.clear()
    assert import_source(store, URL).captures == 2
    assert len(s3.asked("GET", ".safetensors")) == 2


def test_a_trace_dataset_is_known_by_its_objects_versions(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    source.double(1, receipt=False)
    upload(s3, source)
    assert import_source(store, URL).source == "FlashInfer-Trace dataset"
    s3.requests.clear()
    assert import_source(store, URL).added == 0
    assert s3.asked("GET", ".safetensors") == []
    key = next(key for key in s3.listed() if key.endswith(".safetensors"))
    s3.put(key, floats(9).file())  # equal in size; its name means nothing in such a dataset
    assert import_source(store, URL).workloads == 1


def test_a_store_comes_with_its_runs(
    s3: S3, store: Store, source: RootBuilder, invoke: Cli, tmp_path: Path
) -> None:
    invoke("--db", tmp_path / "old" / "kclab.db", "import", fill(source).root)
    for path in (tmp_path / "old").rglob("*"):
        if path.is_file() and path.suffix in (".db", ".safetensors"):
            s3.put(f"old/{path.relative_to(tmp_path / 'old').as_posix()}", path.read_bytes())
    for url in ("s3://bucket/old", "s3://bucket/old/kclab.db"):
        summary = import_source(store, url)
        assert summary.source == "kclab store"
    assert summary.added == 0


def test_a_database_copied_while_in_use_is_refused(s3: S3, store: Store) -> None:
    s3.put("old/kclab.db", b"SQLite format 3\0")
    s3.put("old/kclab.db-wal", b"rows")
    with pytest.raises(DatasetRefused, match="-wal lies beside"):
        import_source(store, "s3://bucket/old")


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-1] + b"\x7f"])
def test_a_cut_or_altered_tensor_is_refused_by_its_url_and_changes_nothing(
    s3: S3, store: Store, source: RootBuilder, rows: Rows, change: Any
) -> None:
    upload(s3, fill(source))
    key = next(key for key in s3.listed() if floats(2.5).digest() in key)
    whole = s3.get(key)
    s3.put(key, change(whole))
    with pytest.raises(RootRefused) as refused:
        import_source(store, URL)
    assert f"s3://bucket/{key}" in str(refused.value)
    assert str(store.database.parent) not in str(refused.value)
    assert rows("SELECT count(*) FROM blob") == [(0,)]
    assert list(store.blobs.present()) == []
    ((summary,),) = rows("SELECT summary FROM run")
    assert summary.startswith(f"{URL}: 1 row refused") and "\n" not in summary

    s3.put(key, whole)
    s3.requests.clear()
    assert import_source(store, URL).workloads == 3
    assert s3.asked("GET", ".safetensors") == [key]


def test_a_copy_that_went_bad_while_it_waited_is_fetched_again(
    s3: S3, store: Store, source: RootBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(s3, fill(source))
    monkeypatch.setattr("kclab.dataset.import_root._commit", lambda *all: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        import_source(store, URL)
    monkeypatch.undo()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    copy = next(path for path in remains(store) if path.suffix == ".safetensors")
    copy.write_bytes(copy.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(RootRefused, match=copy.name):
        import_source(store, URL)
    assert import_source(store, URL).workloads == 3


def test_a_key_that_leads_out_is_refused_before_anything_is_fetched(
    s3: S3, store: Store, source: RootBuilder, tmp_path: Path
) -> None:
    upload(s3, fill(source))
    for key in ("../../../escaped", "/absolute", "a\\b"):
        s3.put(f"case/root/{key}", b"out")
        with pytest.raises(DatasetRefused, match="Nothing was fetched"):
            import_source(store, URL)
        s3.client.delete_object(Bucket="bucket", Key=f"case/root/{key}")
    assert s3.asked("GET") == []
    assert not list(tmp_path.rglob("escaped"))


def test_odd_keys_that_no_dataset_names_do_no_harm(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    upload(s3, fill(source))
    for key in ("folder/", "a/./b", "x" * 300, "results"):
        s3.put(f"case/root/{key}", b"")
    assert import_source(store, URL).workloads == 3


def test_what_is_not_there_is_one_sentence(s3: S3, store: Store) -> None:
    s3.put("file.txt", b"text")
    for url, said in (
        ("s3://no-such-bucket/x", "no such bucket"),
        ("s3://bucket/nothing", "there is nothing below it"),
        ("s3://bucket", "no dataset; expected"),
        ("s3://bucket/file.txt", "an object, neither a dataset folder nor"),
        ("nowhere://bucket/x", "nowhere"),
        ("zip::s3://bucket/x", "chained URLs"),
        ("s3://", "names no place; write s3:// and a bucket"),
        ("s3:///x", "names no place; write s3:// and a bucket"),
        ("hf://", "names no place; write hf:// and a repository"),
    ):
        with pytest.raises(BadUsage, match=said):
            import_source(store, url)


def test_faults_of_who_and_where_say_what_to_do(
    s3: S3, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentLacking, match="gs:// needs a package"):
        import_source(store, "gs://bucket/x")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(EnvironmentLacking, match=r"no credentials .*AWS_PROFILE"):
        import_source(store, URL)
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_missing_package_names_the_extra(
    s3: S3, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(EnvironmentLacking, match=r"pip install 'kclab\[remote\]'"):
        import_source(store, URL)


def test_no_secret_reaches_a_row_or_a_message(
    s3: S3, source: RootBuilder, invoke: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(s3, fill(source))
    # What other words of the command line hold is kept with the run, too.
    monkeypatch.setattr(sys, "argv", ["kclab", "import", URL, "ftp://me:hunter1@host/x?sig=cafe"])
    assert invoke("import", URL).code == 0
    refused = invoke("import", "s3://AKID:hunter2@bucket/case/root?X-Amz-Signature=feedface")
    assert (refused.code, "holds no credentials" in refused.err) == (2, True)
    text = b"".join(path.read_bytes() for path in tmp_path.glob("kclab.db*"))
    assert b"ftp://\xe2\x80\xa6@host" in text or b"ftp://\\u2026@host" in text
    for secret in ("feedface", "hunter1", "hunter2", "cafe", "secret-of-the-tests"):
        assert secret.encode() not in text
        assert secret not in refused.err


def test_a_killed_import_goes_on_and_fetches_nothing_twice(
    s3: S3, store: Store, source: RootBuilder, rows: Rows
) -> None:
    upload(s3, fill(source, 40))
    with killed(s3, "GET", 50, "--db", store.database, "import", URL):
        pass
    assert rows("SELECT count(*) FROM capture") == [(0,)]
    kept = {path.stem for path in remains(store) if path.suffix == ".safetensors"}
    assert kept
    s3.requests.clear()

    summary = import_source(store, URL)
    assert summary.workloads == 40
    again = {Path(key).stem for key in s3.asked("GET", ".safetensors")}
    assert again.isdisjoint(kept)
    assert len(again) <= 80 - len(kept)
    assert remains(store) == []


def test_a_large_object_goes_on_where_it_broke_off(
    s3: S3, store: Store, source: RootBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclab.dataset.remote.download.PIECE", 1 << 10)
    value = floats(*range(1000))
    source.double(*range(1000))
    upload(s3, source.report())
    key = f"bucket/case/root/blob/workloads/double/{value.digest()}.safetensors"
    read, begins = Place.read, []

    def fail_at_third(place: Place, path: str, begin: int, end: int) -> bytes:
        if path == key:
            begins.append(begin)
            if len(begins) == 3:
                raise EnvironmentLacking("the network is gone")
        return read(place, path, begin, end)

    monkeypatch.setattr(Place, "read", fail_at_third)
    with pytest.raises(EnvironmentLacking, match="gone"):
        import_source(store, URL)
    assert import_source(store, URL).workloads == 1
    assert begins == [0, 1024, 2048, 2048, 3072]


def test_two_imports_of_one_url_do_not_meet(s3: S3, store: Store, source: RootBuilder) -> None:
    upload(s3, fill(source))
    with (
        waiting_folder(store, f"import of {URL}"),
        pytest.raises(DatabaseBusy, match="another import of s3://"),
    ):
        import_source(store, URL)


def test_the_command_says_what_it_fetched(
    s3: S3, source: RootBuilder, invoke: Cli, tmp_path: Path
) -> None:
    upload(s3, fill(source))
    shown = json.loads(invoke("import", URL, "--format", "json").out)
    assert (shown["workloads"], shown["objects fetched"]) == (3, 9)
    assert invoke("import", URL, "--partial").code == 0


def test_partial_takes_the_good_rows_and_names_the_others_by_url(
    s3: S3, store: Store, source: RootBuilder
) -> None:
    source.double(1)
    source.double(2, step=1, verdict="failed")
    upload(s3, source.report())
    summary: ImportSummary = import_source(store, URL, ImportOptions(partial=True))
    assert summary.captures == 1
    assert summary.refused[0].where == f"{URL}/results/captures.jsonl:2"


def test_a_file_url_is_a_path(store: Store, tmp_path: Path) -> None:
    source = fill(RootBuilder(tmp_path / "with space"))
    summary = import_source(store, source.root.as_uri())
    assert (summary.workloads, summary.fetched) == (3, 0)
    with pytest.raises(BadUsage, match="this machine's files"):
        import_source(store, "file://elsewhere/x")
