"""Which reference sources may run on this machine.

A reference is code. Those of kclab's families and shipped definitions may run, earlier versions
included, since a store keeps the version that it was written with; any other only once somebody on
this machine trusted the sha256 of its source. The list lies in the user's state folder and never
travels with a store.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kclab.core.catalog import load_folder, shipped_folder
from kclab.core.definition import Definition
from kclab.core.errors import BadUsage, ReferenceUntrusted
from kclab.core.families import FAMILIES
from kclab.core.times import Microseconds, now_us


@dataclass(frozen=True, slots=True)
class TrustedReference:
    """One entry of the list."""

    reference_sha256: str
    note: str
    added_us: Microseconds


def trust_file() -> Path:
    """KCLAB_TRUST, else `kclab/trusted-references.json` in $XDG_STATE_HOME or ~/.local/state."""
    if named := os.environ.get("KCLAB_TRUST"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return folder / "kclab" / "trusted-references.json"


def is_trusted(reference_sha256: str) -> bool:
    """Whether the source with this sha256 may run here."""
    if reference_sha256 in _family_sources() or reference_sha256 in _read():
        return True
    return reference_sha256 in _shipped_sources()


def require_trusted(definition: Definition) -> None:
    """Raise ReferenceUntrusted, saying how to trust it, unless the reference may run."""
    if not is_trusted(definition.reference_sha256):
        raise ReferenceUntrusted(
            f"the reference of {definition.name} is code that nobody on this machine trusted; read"
            f" it, then: kclab definitions trust {definition.reference_sha256}"
        )


def trust(reference_sha256: str, note: str = "") -> bool:
    """Let a source run on this machine from now on; False when it is on the list already."""
    if len(reference_sha256) != 64 or set(reference_sha256) - set("0123456789abcdef"):
        raise BadUsage(f"{reference_sha256!r} is not the sha256 of a reference (64 hex digits).")
    with _editing() as entries:
        if reference_sha256 in entries:
            return False
        entries[reference_sha256] = {"note": note, "added_us": now_us()}
    return True


def untrust(reference_sha256: str) -> bool:
    """Take a source off the list; False when it was not there."""
    with _editing() as entries:
        return entries.pop(reference_sha256, None) is not None


def trusted() -> list[TrustedReference]:
    """The machine's list, oldest first; built-in sources are not on it."""
    entries = [
        TrustedReference(sha, str(entry.get("note", "")), int(entry.get("added_us", 0)))
        for sha, entry in _read().items()
    ]
    return sorted(entries, key=lambda entry: entry.added_us)


@cache
def _family_sources() -> frozenset[str]:
    return frozenset().union(*(family.reference_sha256s for family in FAMILIES.values()))


@cache
def _shipped_sources() -> frozenset[str]:
    return frozenset(d.reference_sha256 for d in load_folder(shipped_folder()).values())


def _read() -> dict[str, dict[str, Any]]:
    path = trust_file()
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadUsage(f"{path}: not a readable list of trusted references ({error}).") from error
    entries = content.get("trusted") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
        raise BadUsage(f"{path}: not a list of trusted references; move it away to start anew.")
    return entries


@contextmanager
def _editing() -> Iterator[dict[str, dict[str, Any]]]:
    """The entries under a lock, written back in one rename when they changed."""
    path = trust_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = _read()
        before = dict(entries)
        yield entries
        if entries != before:
            _replace(path, json.dumps({"trusted": entries}, indent=2) + "\n")


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
