"""The page that `kclab runs show` prints about one run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from kclab.cli.output import (
    Column,
    Format,
    heading,
    print_fields,
    print_json,
    print_lines,
    print_rows,
)
from kclab.cli.show import dated, short, short_run, show_local, show_ms, show_time
from kclab.core.units import counted, format_bytes, format_count, format_duration
from kclab.db.queries.run_diff import flattened

REPLAY_COLUMNS = (
    Column("definition", first=True),
    *(Column(name, right=True, show=format_count)
      for name in ("replayed", "passed", "failed", "error", "skipped", "warned")),
)  # fmt: skip
FAILURE_COLUMNS = (
    Column("workload", show=short),
    Column("definition", first=True),
    Column("status"),
    Column("reason", wrap=True),
)
ERROR_COLUMNS = (
    Column("at_us", "when", show=show_time),
    Column("operation"),
    Column("kind"),
    Column("message", wrap=True),
)
COVERAGE_COLUMNS = (
    Column("definition", first=True),
    Column("outcomes", "calls", show=lambda found: _outcomes(found), wrap=True),
)
WORKER_COLUMNS = (
    Column("process"),
    Column("rank", right=True, sparse=True),
    Column("engine", sparse=True),
    Column("acknowledged_us", "acknowledged", show=show_time),
    Column("drained_us", "drained", show=show_time),
    Column("note", wrap=True, sparse=True),
)
TIMING_COLUMNS = (
    Column("name", middle=True),
    Column("baseline_ms", "control ms", right=True, show=show_ms),
    Column("candidate_ms", "candidate ms", right=True, show=show_ms),
    Column("ratio", "speed-up", right=True, show=lambda ratio: f"{ratio:.3f}x"),
    Column("ratio_low", "low", right=True, show=lambda ratio: f"{ratio:.3f}"),
    Column("ratio_high", "high", right=True, show=lambda ratio: f"{ratio:.3f}"),
    Column("pairs", right=True),
    Column("verdict"),
)

TABLES = (
    ("coverage", "coverage", COVERAGE_COLUMNS),
    ("processes", "workers", WORKER_COLUMNS),
    ("replays", "replays", REPLAY_COLUMNS),
    ("did not pass", "failures", FAILURE_COLUMNS),
    ("timings", "measurements", TIMING_COLUMNS),
    ("errors", "errors", ERROR_COLUMNS),
)
"""(title, key of `run_details`, columns) of the page's tables."""


def print_run(details: Mapping[str, Any], form: Format) -> None:
    """Print everything that `run_details` found."""
    if form is not Format.TABLE:
        times = ("started", "finished", "heartbeat")
        record = dated(details, *times) | {
            "errors": [dated(row, "at") for row in details["errors"]],
            "workers": [dated(row, "acknowledged", "drained") for row in details["workers"]],
        }
        print_json(record) if form is Format.JSON else print_fields(record, form)
        return
    print_fields(head_fields(details), form)
    _print_part("parameters", parameter_fields(details))
    _print_part("environment", environment_fields(details))
    for title, key, columns in TABLES:
        if details[key]:
            heading(title)
            print_rows(details[key], columns, form)
    print_lines("next", next_steps(details))


def head_fields(details: Mapping[str, Any]) -> dict[str, Any]:
    """What stands on top of a run's page."""
    exit_code = "" if details["exit_code"] is None else f" (exit {details['exit_code']})"
    head = {
        "run": details["uuid"],
        "command": " ".join(filter(None, (details["command"], details["mode"]))),
        "status": f"{details['status']}{exit_code}",
        "summary": details["summary"],
        "started": show_local(details["started_us"]),
        "took": _took(details),
        "typed": shlex.join(str(word) for word in details["argv"]),
        "produced": _products(details["products"]),
        "tags": " ".join(details["tags"]),
        "note": details["note"],
        "host": _host(details),
        "commit": _commit(details),
        "part of": details["parent"] and short_run(details["parent"]),
        "parts": " ".join(short_run(uuid) for uuid in details["children"]),
    }
    return {name: value for name, value in head.items() if value}


def _took(details: Mapping[str, Any]) -> str:
    end = details["finished_us"] or details["heartbeat_us"]
    took = format_duration((end - details["started_us"]) / 1e6)
    if details["finished_us"]:
        return took
    return f"{took} so far" if details["status"] == "running" else f"at least {took}"


def _products(products: Mapping[str, int]) -> str:
    return ", ".join(
        counted(count, name.removesuffix("s")) for name, count in products.items() if count
    )


def _host(details: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, (details["host"], f"pid {details['pid']}", details["gpu_uuid"])))


def _commit(details: Mapping[str, Any]) -> str | None:
    if not details["git_commit"]:
        return None
    changed = " with changes" if details["git_dirty"] else ""
    return f"{details['git_commit'][:12]}{changed}"


def parameter_fields(details: Mapping[str, Any]) -> dict[str, Any]:
    """The run's parameters, nested ones dotted, lists as JSON."""
    return _told(flattened(details["params"]))


def environment_fields(details: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the run's environment."""
    facts = details["environment"]
    shown = {name: value for name, value in flattened(facts).items() if name != "sha256"}
    if isinstance(memory := shown.get("gpu_memory"), int):
        shown["gpu_memory"] = format_bytes(memory)
    return _told({"id": short(facts["sha256"]), **shown})


def _told(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(v) if isinstance(v, list) else v for name, v in fields.items()}


def _outcomes(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())


def _print_part(title: str, fields: Mapping[str, Any]) -> None:
    if fields:
        heading(title)
        print_fields(fields, Format.TABLE)


def next_steps(details: Mapping[str, Any]) -> list[str]:
    """Commands or sentences that lead on from how a run ended."""
    run, status = short_run(details["uuid"]), details["status"]
    steps = []
    if status == "running":
        return [f"kclab runs show {run}   (it goes on; look again)"]
    if details["products"]["captures"] and details["command"] in ("capture", "import"):
        steps.append(f"kclab replay --run {run}")
    if details["failures"]:
        worst = details["failures"][0]["workload"]
        steps += [f"kclab workloads show {short(worst)}", "kclab replay --failed --oracle"]
    if status == "empty" and details["coverage"]:
        steps.append("nothing was kept: the reasons are under coverage")
    if any(row["traceback"] for row in details["errors"]):
        steps.append(f"kclab runs show {run} --format json   (tracebacks)")
    if status in ("stale", "interrupted", "error") and not details["products"]["captures"]:
        steps.append(f"kclab runs rm {run}")
    return steps
