"""Importing a dataset folder: judge its rows, verify its bytes, then one transaction.

Everything slow happens before the transaction: rows are read and judged, files hashed and parked,
row values prepared. Then the files get their names, the file system is synced once, and the rows
are committed together. A crash at any moment leaves all of it or, but for nameless bytes, nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kclab.core.definition import Definition
from kclab.core.digest import DTYPES, element_count, text_sha256
from kclab.core.errors import BlobDamaged
from kclab.core.families import family_of
from kclab.dataset.arrivals import Arrival, Arrivals, Source
from kclab.dataset.cases import Case, FileTensor, Refusal, Root, RootKind
from kclab.dataset.foreign import ForeignRow, add_foreign, read_foreign
from kclab.dataset.insertion import insert
from kclab.dataset.known import Known, known_blobs, known_captures, known_sources
from kclab.dataset.options import ImportOptions, ImportSummary, Progress, RootRefused
from kclab.dataset.prepared import (
    Prepared,
    PreparedWorkload,
    check_content,
    content_uuid,
    dataset_extra,
    input_value,
    prepare_capture,
    prepare_verdict,
)
from kclab.dataset.source_file import Failed, NotFetched
from kclab.dataset.validation import accepted
from kclab.db.connection import writing
from kclab.db.rows import BlobRow, to_json
from kclab.db.runs import ActiveRun

CLAIM = re.compile(r"([0-9a-f]{64})\.safetensors")
"""A blob named by its digest, as capture roots and merged datasets name theirs."""
HINT = "mend them, or take the good rows with --partial."
UNSAFE = "a dataset that names such files is not to be trusted with any row."
