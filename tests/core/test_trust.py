"""Which references may run: kclab's own always, others once this machine trusted them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kclab.core import trust
from kclab.core.catalog import load_catalog
from kclab.core.definition import Definition
from kclab.core.digest import text_sha256
from kclab.core.errors import BadUsage, ReferenceUntrusted
from kclab.core.families import FAMILIES

SHA = "ab" * 32

EARLIER_GEMM = '''\
"""C = A W^T (+ bias): a linear layer's product, accumulated wide and rounded once."""

import torch


def run(A: torch.Tensor, W: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A [M, K], W [N, K], bias [N] or None; C [M, N] in A's dtype."""
    wide = torch.promote_types(A.dtype, torch.float32)
    C = A.to(wide) @ W.to(wide).T
    if bias is not None:
        C = C + bias.to(wide)
    return C.to(A.dtype)
'''
"""dense_gemm's one reference, before plain and biased GEMMs had one each."""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "state" / "trust.json"
    monkeypatch.setenv("KCLAB_TRUST", str(path))
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_sources_are_always_trusted(file, family):
    assert all(map(trust.is_trusted, FAMILIES[family].reference_sha256s))
    assert not file.exists()


def test_what_an_earlier_kclab_wrote_into_a_store_is_trusted_still(file):
    assert trust.is_trusted(text_sha256(EARLIER_GEMM))
    assert not trust.is_trusted(text_sha256(EARLIER_GEMM.upper()))


def test_shipped_definitions_are_always_trusted(file):
    for definition in load_catalog().definitions.values():
        trust.require_trusted(definition)


def test_one_more_space_makes_a_familys_source_foreign(file):
    body = dict(load_catalog().definitions["dense_gemm_bf16_nt_n64_k4096"].body)
    body["reference"] += " "
    with pytest.raises(ReferenceUntrusted, match=r"kclab definitions trust [0-9a-f]{64}$"):
        trust.require_trusted(Definition.from_body(body))


def test_trust_is_given_once_and_taken_back(file):
    assert not trust.is_trusted(SHA)
    assert trust.trust(SHA, "read it")
    assert not trust.trust(SHA, "again")
    assert trust.is_trusted(SHA)
    assert [(e.reference_sha256, e.note) for e in trust.trusted()] == [(SHA, "read it")]
    assert trust.untrust(SHA)
    assert not trust.untrust(SHA)
    assert not trust.is_trusted(SHA)


@pytest.mark.parametrize("sha", ["", "ab", "AB" * 32, "zz" * 32, SHA + "0"])
def test_only_a_whole_sha256_can_be_trusted(file, sha):
    with pytest.raises(BadUsage, match="64 hex digits"):
        trust.trust(sha)


def test_the_list_lies_in_the_users_state_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("KCLAB_TRUST", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert trust.trust_file() == tmp_path / "xdg" / "kclab" / "trusted-references.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert trust.trust_file().parent == tmp_path / ".local" / "state" / "kclab"


@pytest.mark.parametrize("content", ["{", "[]", '{"trusted": []}', '{"trusted": {"a": 1}}'])
def test_a_damaged_list_trusts_nothing_and_is_named_and_kept(file, content):
    file.parent.mkdir()
    file.write_text(content)
    for act in (lambda: trust.is_trusted(SHA), lambda: trust.trust(SHA), trust.trusted):
        with pytest.raises(BadUsage, match=r"trust\.json"):
            act()
    assert file.read_text() == content


def test_a_failed_write_leaves_the_old_list_and_no_litter(file, monkeypatch):
    trust.trust(SHA)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trust.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        trust.trust("cd" * 32)
    assert file.read_bytes() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["trust.json", "trust.json.lock"]


def test_only_the_user_can_read_or_change_the_list(file):
    trust.trust(SHA)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_processes_that_trust_at_once_lose_nothing(file):
    program = (
        "import sys\nfrom kclab.core.trust import trust\n"
        "for i in range(25): trust(f'{sys.argv[1]}{i:02d}'.rjust(64, '0'))\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in (1, 2, 3)]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert len(json.loads(file.read_text())["trusted"]) == 75


def test_definitions_families_and_trust_load_without_torch():
    program = (
        "import sys, kclab.core.families.shipped as s, kclab.core.trust as t\n"
        "assert all(t.is_trusted(d.reference_sha256) for d in s.shipped_definitions())\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'sqlalchemy', 'sqlmodel', 'typer', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
