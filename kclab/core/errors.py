"""Every error that a user can meet, and the exit code that the command line gives it.

KclabError
├── CheckFailed            1   a comparison, gate or verification did not hold
│   ├── DatasetRefused         an import source is not wholly valid
│   ├── BlobDamaged            stored bytes are not the bytes that their digest names
│   └── EngineFailed           a served engine died, or did not answer as it must
├── BadUsage               2   an option, definition or file that cannot mean anything
│   └── DefinitionInvalid      a definition breaks the format
├── NothingMatched         3   nothing was selected, captured or measured
├── EnvironmentLacking     4   hardware, a package or a file that the command needs is not here
│   ├── BlobAbsent             a row's bytes are elsewhere (rows-only store, LFS pointer)
│   └── ReferenceUntrusted     a reference may not run on this machine yet
└── DatabaseProblem        5
    ├── DatabaseMissing        no database where one is needed
    ├── DatabaseBusy           another process held the write lock too long
    ├── DatabaseOutdated       older than this kclab; needs `kclab db upgrade`
    ├── DatabaseNewer          written by a newer kclab
    └── DatabaseDamaged        not a database, or fails its integrity check

A message is one or two plain sentences: the thing, what was found, what to do.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "BadUsage",
    "BlobAbsent",
    "BlobDamaged",
    "CheckFailed",
    "DatabaseBusy",
    "DatabaseDamaged",
    "DatabaseMissing",
    "DatabaseNewer",
    "DatabaseOutdated",
    "DatabaseProblem",
    "DatasetRefused",
    "DefinitionInvalid",
    "EngineFailed",
    "EnvironmentLacking",
    "ExitCode",
    "KclabError",
    "NothingMatched",
    "ReferenceUntrusted",
]


class ExitCode(IntEnum):
    """What `kclab` returns to the shell."""

    OK = 0
    """Done, and every check held."""
    CHECK_FAILED = 1
    """A mismatch, a regression, a refused dataset."""
    USAGE = 2
    """The command line or a file it names makes no sense."""
    NOTHING = 3
    """Nothing matched or was measured; never a pass."""
    ENVIRONMENT = 4
    """The machine lacks something: a GPU, a package, a trusted reference."""
    DATABASE = 5
    """The database is missing, busy, newer or damaged."""
    INTERRUPTED = 130
    """Ctrl-C."""
    UNREAD = 141
    """Whoever read the output left before its end, as in `| head`: what SIGPIPE's death tells."""


class KclabError(Exception):
    """An expected failure, told in a sentence; never shown as a traceback."""

    exit_code = ExitCode.CHECK_FAILED

    @property
    def summary(self) -> str:
        """The message in one line, for a list of runs."""
        return str(self).partition("\n")[0] or type(self).__name__


class CheckFailed(KclabError):
    """A comparison, gate or verification did not hold."""


class DatasetRefused(CheckFailed):
    """An import source is not wholly valid; nothing was changed."""


class BlobDamaged(CheckFailed):
    """Stored bytes are not the bytes that their digest names."""


class EngineFailed(CheckFailed):
    """A served engine died, never became ready, or did not answer as it must."""


class BadUsage(KclabError):
    """An option, definition or file that cannot mean anything."""

    exit_code = ExitCode.USAGE


class DefinitionInvalid(BadUsage):
    """A definition breaks the FlashInfer-Trace format or kclab's additions to it."""


class NothingMatched(KclabError):
    """Nothing was selected, captured or measured."""

    exit_code = ExitCode.NOTHING


class EnvironmentLacking(KclabError):
    """Hardware, a package or a file that the command needs is not here."""

    exit_code = ExitCode.ENVIRONMENT


class BlobAbsent(EnvironmentLacking):
    """A row's bytes are elsewhere: a rows-only store or a Git LFS pointer."""


class ReferenceUntrusted(EnvironmentLacking):
    """A reference may not run on this machine until its source is trusted."""


class DatabaseProblem(KclabError):
    """The database cannot be used as it is."""

    exit_code = ExitCode.DATABASE


class DatabaseMissing(DatabaseProblem):
    """No database where one is needed."""


class DatabaseBusy(DatabaseProblem):
    """Another process held the write lock longer than the busy timeout."""


class DatabaseOutdated(DatabaseProblem):
    """The schema is older than this kclab; `kclab db upgrade` brings it up."""


class DatabaseNewer(DatabaseProblem):
    """The schema was written by a newer kclab."""


class DatabaseDamaged(DatabaseProblem):
    """Not a SQLite database, or one that fails its integrity check."""
