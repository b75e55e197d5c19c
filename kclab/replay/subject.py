"""What is to be judged: one workload with one set of engine outputs, from a store or a root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kclab.core.definition import Definition
from kclab.replay.task import StoredTensor


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict that needs no run."""

    status: str
    """`skipped` or `error`."""
    reason: str
    lacking: bool = False
    """The machine lacks something: trust in a reference, or bytes that are elsewhere."""


NO_ENGINE_OUTPUT = Decided("skipped", "no engine output")


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload and what the engine made of it."""

    uuid: str
    """The workload's uuid, as the store or the root names it."""
    definition_name: str
    definition: Definition | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, StoredTensor | int | float | bool] = field(default_factory=dict)
    outputs: Mapping[str, StoredTensor] = field(default_factory=dict)
    decided: Decided | None = None
    """Why it cannot be run; None for one that can."""
    workload_id: int | None = None
    definition_id: int | None = None
    capture_id: int | None = None
    origin: str | None = None
    """`file:line` in a root that is replayed in place."""


def random_inputs(names: list[str]) -> Decided:
    """The verdict on a workload some of whose inputs were never captured."""
    some = f"input {names[0]} is" if len(names) == 1 else f"inputs {', '.join(names)} are"
    return Decided("skipped", f"{some} random: no value was captured")
