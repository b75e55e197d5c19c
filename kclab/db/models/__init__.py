"""The tables of `kclab.db`, as SQLModel classes. Alembic migrations follow them.

Conventions: INTEGER surrogate keys inside one file, and a stable external key beside them for
merging (run uuid, workload uuid, sha256). Times are INTEGER microseconds UTC (`*_us`). JSON only
for what is never filtered on. A number that is NaN or infinite is stored as NULL with a reason.
Rows are written by `kclab.db.rows` (plain sqlite3: bulk rows, and inside engines) and by
`kclab.db.session` (single typed rows).
"""

from __future__ import annotations

from kclab.db.models import fc2
from kclab.db.models.captures import Capture, CaptureCount, CaptureOutput, CaptureWorker, Request
from kclab.db.models.content import Blob, Definition, ForeignRecord, Workload, WorkloadInput
from kclab.db.models.runs import RUN_STATUSES, Environment, Error, Run, RunTag
from kclab.db.models.timings import Measurement, TimingSample
from kclab.db.models.verdicts import REPLAY_STATUSES, OracleOutput, Replay, ReplayOutput

__all__ = [
    "REPLAY_STATUSES",
    "RUN_STATUSES",
    "Blob",
    "Capture",
    "CaptureCount",
    "CaptureOutput",
    "CaptureWorker",
    "Definition",
    "Environment",
    "Error",
    "ForeignRecord",
    "Measurement",
    "OracleOutput",
    "Replay",
    "ReplayOutput",
    "Request",
    "Run",
    "RunTag",
    "TimingSample",
    "Workload",
    "WorkloadInput",
    "fc2",
]
