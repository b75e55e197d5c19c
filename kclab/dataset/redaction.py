"""Taking out of a copied database, and of receipts, what tells about people and machines.

Gone: prompts and request payloads, responses and images, command lines, host names, environment
variables, local paths. Kept: what the numbers need, by an allow-list, so that a receipt's new key
is dropped until somebody has looked at it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

KEPT = frozenset(
    (
        *("definition", "uuid", "capture_uuid", "axes", "expected_output"),
        *("operation", "module_path", "variant", "step", "selection_step", "capture_steps"),
        *("rank", "process_id", "device", "strides", "stall_us", "captured_us"),
        *("prefix_segments", "adapter", "sampling_sigmas", "sampling_adapter"),
        *("model", "model_revision", "engine", "engine_version", "torch", "model_batch_size"),
        *("request_id", "requested_outputs", "actual_outputs", "status_code"),
        *("started_at", "finished_at", "validation", "unvalidated"),
    )
)
"""A receipt's keys that an export may show."""
LOCAL_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\][^\s:'\",]+")


def redacted_receipt(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt's allowed keys; local paths in them lose their folders."""
    return {key: _plain(value) for key, value in receipt.items() if key in KEPT}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, Mapping):
        hidden = ("traceback", "error", "log")
        return {key: _plain(item) for key, item in value.items() if key not in hidden}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def without_paths(text: str | None) -> str | None:
    """`text` with each absolute path cut to its last part."""
    if text is None:
        return None
    return LOCAL_PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)


def redacted_trace(body: Mapping[str, Any]) -> dict[str, Any]:
    """A foreign trace or solution without logs and machine names."""
    plain = dict(body)
    evaluation = plain.get("evaluation")
    if isinstance(evaluation, Mapping):
        plain["evaluation"] = {**evaluation, **({"log": ""} if "log" in evaluation else {})}
    return plain


REDACTIONS = (
    "UPDATE request SET payload = '{}', response = NULL",
    "UPDATE run SET argv = '[]', params = '{}', host = NULL, volatile = NULL, boot_id = NULL,"
    " gpu_uuid = NULL, note = NULL, summary = without_paths(summary)",
    "UPDATE error SET message = without_paths(message), traceback = NULL, context = NULL",
    "UPDATE replay SET origin = without_paths(origin), reason = without_paths(reason)",
    "UPDATE replay_output SET reason = without_paths(reason)",
    "UPDATE definition SET origin = without_paths(origin)",
    "UPDATE blob SET hint = without_paths(hint)",
    "UPDATE capture SET receipt = redacted_receipt(receipt)",
    "UPDATE foreign_record SET body = redacted_trace(body)",
    # `<host>:<pid>:<start>`: workers stay apart, their host is nobody's business.
    "UPDATE capture_worker SET process = 'host' || substr(process, instr(process, ':')),"
    " note = NULL",
    "UPDATE capture_count SET process = 'host' || substr(process, instr(process, ':'))",
)


def redact(connection: sqlite3.Connection) -> None:
    """Redact a copied database; VACUUM it afterwards, or the old text stays in free pages."""
    connection.create_function("without_paths", 1, without_paths, deterministic=True)
    for name, function in (
        ("redacted_receipt", redacted_receipt),
        ("redacted_trace", redacted_trace),
    ):
        connection.create_function(
            name, 1, lambda text, change=function: json.dumps(change(json.loads(text)))
        )
    for statement in REDACTIONS:
        connection.execute(statement)
