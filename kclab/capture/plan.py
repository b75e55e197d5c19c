"""What a capture run is to do: decided by the parent, read by every process that it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage

PLAN_VARIABLE = "KCLAB_CAPTURE_PLAN"
"""Environment variable that names the plan's file."""

PER = ("variant", "site")
ON_FULL = ("wait", "drop")


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """One capture run's choices; written once as JSON into the run's control folder."""

    database: Path
    """The store's `kclab.db`; it is current before any process starts."""
    run_id: int
    run_uuid: str
    control: Path
    """The run's control folder (see `kclab.capture.control`)."""
    adapters: tuple[str, ...] = ("torch",)
    root: str | None = None
    """Class whose calls are the steps, as `package.module.Class` or a bare name."""
    definitions: tuple[str, ...] = ()
    """Name globs to select; empty selects all."""
    steps: tuple[int, ...] | None = None
    """Steps to capture; None captures each."""
    max_per_axes: int | None = 4
    """Captures per definition and axes, over all processes; None is unbounded."""
    max_bytes: int | None = 4 << 30
    """New bytes over all processes; None is unbounded."""
    define_missing: bool = False
    """Make a family's definition for a shape that has none."""
    per: str = "variant"
    """`variant`: one capture per request, step and variant; `site`: and per module path."""
    on_full: str = "wait"
    """What a full queue does to the engine: `wait` for the writer, or `drop` the capture."""
    queue_bytes: int = 1 << 30
    """How much copied data may wait for the writer, per process."""
    strict: bool = False
    """A capture error is raised into the engine."""
    definition_folders: tuple[Path, ...] = ()
    """Folders of definitions besides the shipped ones."""
    served: bool = False
    """Calls belong to the request that the control folder names as active, else to nobody."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What each receipt says about the run: model, revision, engine, server command."""

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(asdict(self), default=str, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CapturePlan:
        """Read what `to_json` wrote; raises BadUsage for anything else."""
        try:
            values = json.loads(text)
            known = {f.name for f in fields(cls)}
            plan = {key: values[key] for key in known if key in values}
            for key in ("database", "control"):
                plan[key] = Path(plan[key])
            for key in ("adapters", "definitions"):
                plan[key] = tuple(plan.get(key, ()))
            plan["definition_folders"] = tuple(map(Path, plan.get("definition_folders", ())))
            plan["steps"] = None if plan.get("steps") is None else tuple(plan["steps"])
            return cls(**plan)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadUsage(f"not a capture plan ({error!r}).") from error

    def save(self) -> Path:
        """Write the plan into its control folder; returns the file."""
        path = self.control / "plan.json"
        path.write_text(self.to_json(), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> CapturePlan:
        """Read a plan's file; raises BadUsage naming it."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, BadUsage) as error:
            raise BadUsage(f"{path}: {error}") from error
