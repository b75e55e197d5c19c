"""`kclab doctor` says what is here, what is not, and what to do about it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from kclab.cli import doctor
from kclab.core import machine
from kclab.core.errors import EnvironmentLacking
from kclab.core.filesystem import file_system_type
from kclab.core.machine import Finding, State
from kclab.db import health
from kclab.db.health import store_findings
from kclab.db.store import Store
from kclab.fc2 import build
from tests.conftest import Cli

MOUNTS = """\
22 1 0:1 / / rw,relatime - ext4 /dev/root rw
23 22 0:2 / /home rw - autofs systemd-1 rw
24 22 0:3 / /mnt/c rw - 9p drvfs rw,aname=drvfs;path=C:
25 22 0:4 / /srv/my\\040data rw shared:7 - virtiofs share rw
26 22 0:5 / /srv/my\\040data/local rw - xfs /dev/vdb rw
28 23 0:7 / /home rw - nfs4 server:/home rw
malformed
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/opt/x", "ext4"),
        ("/home/me/kclab", "nfs4"),
        ("/homes", "ext4"),
        ("/mnt/c/Users", "9p"),
        ("/srv/my data/a", "virtiofs"),
        ("/srv/my data/local", "xfs"),
    ],
)
def test_file_system_is_that_of_the_deepest_mount(path: str, kind: str) -> None:
    assert file_system_type(Path(path), MOUNTS) == kind


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    """Findings by what they are about."""
    return {finding.name: finding for finding in findings}


def test_healthy_store_is_ok(store: Store) -> None:
    found = by_name(list(store_findings(store)))
    assert found["database"].state is State.OK
    assert found["journal"].state is State.OK
    assert "schema" in found["database"].found


def test_missing_database_is_absent_and_not_made(tmp_path: Path) -> None:
    store = Store.at(tmp_path / "not" / "yet" / "kclab.db")
    found = by_name(list(store_findings(store)))
    assert found["database"].state is State.ABSENT
    assert list(tmp_path.iterdir()) == []


def test_damaged_database_is_broken_and_untouched(tmp_path: Path, invoke: Cli) -> None:
    path = tmp_path / "kclab.db"
    path.write_bytes(b"this is not a database file\n" * 300)
    before = path.read_bytes()
    assert by_name(list(store_findings(Store.at(path))))["database"].state is State.BROKEN
    assert path.read_bytes() == before


def test_older_schema_is_a_warning_with_the_command(store: Store) -> None:
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    found = by_name(list(store_findings(store)))["database"]
    assert found.state is State.WARNING
    assert "kclab db upgrade" in found.found


def test_journal_that_is_not_wal_is_a_warning(store: Store) -> None:
    with closing(sqlite3.connect(store.database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    found = by_name(list(store_findings(store)))["journal"]
    assert (found.state, found.found.split()[0]) == (State.WARNING, "delete")


@pytest.mark.parametrize(
    ("kind", "state"),
    [("nfs4", "warning"), ("9p", "warning"), ("drvfs", "warning"), ("virtiofs", "warning"),
     ("tmpfs", "warning"), ("ext4", "ok"), (None, "ok")],
)  # fmt: skip
def test_unsafe_file_system_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str | None, state: str
) -> None:
    monkeypatch.setattr(health, "file_system_type", lambda path: kind)
    assert by_name(list(store_findings(store)))["file system"].state == state


def test_dead_run_is_a_warning(sample: Store) -> None:
    found = by_name(list(store_findings(sample)))["runs"]
    assert (found.state, found.found) == (State.WARNING, "1 died without an end")


def test_full_disk_is_a_warning(tmp_path: Path) -> None:
    assert machine.free_space_finding(tmp_path, enough=2**80).state is State.WARNING
    assert machine.free_space_finding(tmp_path / "not" / "there", enough=0).state is State.OK


def test_package_without_its_module_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", (
        ("pytest", "no_such_module", "-"), ("no-such-package", "x", "get it"),
        ("pytest", "pytest", "-"),
    ))  # fmt: skip
    broken, absent, fine = machine.package_findings()
    assert (broken.state, absent.state, fine.state) == ("broken", "absent", "ok")
    assert absent.advice == "get it"


def test_doctor_as_json_has_every_area(store: Store, invoke: Cli) -> None:
    done = invoke("--db", store.database, "doctor", "--format", "json")
    assert done.code == 0
    rows = json.loads(done.out)
    assert {row["area"] for row in rows} == {"machine", "packages", "store", "trust"}
    named = {row["name"]: row for row in rows}
    assert named["torch"]["state"] == "ok"
    assert {"gpu", "gpu 0"} & named.keys()
    assert {"cublasLt", "sglang", "comfy-kitchen", "diffusers", "database"} <= named.keys()


def test_doctor_exits_5_for_a_broken_database(tmp_path: Path, invoke: Cli) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"junk" * 1000)
    done = invoke("--db", path, "doctor")
    assert done.code == 5
    assert "1 broken" in done.err


@pytest.fixture
def loaded_cublaslt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has a cuBLASLt 13.1.2 loaded and no CUDA headers to build with."""
    source, library = tmp_path / "lt.cpp", tmp_path / "libcublasLt.so.13"
    source.write_text('extern "C" unsigned long cublasLtGetVersion() { return 130102; }')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)

    def no_headers() -> None:
        raise EnvironmentLacking("no cublasLt.h on this machine.")

    monkeypatch.setattr(build, "find_toolkit", no_headers)
    monkeypatch.setattr(build, "loaded_library", lambda name: library)
    return library


def test_cublaslt_tells_its_version_without_headers(loaded_cublaslt: Path) -> None:
    version, headers = doctor._cublaslt()
    assert (version.state, version.found) == (State.OK, f"13.1.2, {loaded_cublaslt}")
    assert (headers.state, headers.found) == (State.ABSENT, "no cublasLt.h on this machine.")


def test_cublaslt_that_does_not_load_is_broken(loaded_cublaslt: Path) -> None:
    loaded_cublaslt.write_bytes(b"not a library")
    assert next(iter(doctor._cublaslt())).state is State.BROKEN
