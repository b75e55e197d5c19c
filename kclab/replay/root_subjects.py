"""A dataset folder's rows as subjects, each refused or partnerless row included."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.errors import BadUsage
from kclab.dataset.cases import Case, FileTensor, Orphan, Refusal, Root, ScalarInput
from kclab.replay.selection import Selection
from kclab.replay.subject import NO_ENGINE_OUTPUT, Decided, Subject, random_inputs
from kclab.replay.task import StoredTensor

DIGEST = re.compile(r"[0-9a-f]{64}")

STORE_ONLY = ("since", "until", "run", "never_passed", "failed")


def check_selection(selection: Selection) -> None:
    """Raise BadUsage for a condition that only a store can answer."""
    for name in STORE_ONLY:
        if name in selection.stated:
            raise BadUsage(
                f"--{name.replace('_', '-')} selects captures of a store; with a PATH use"
                " --definition or --workload, or import the folder first."
            )


def root_subjects(root: Root, selection: Selection) -> list[Subject]:
    """Every selected row of the root, usable or not."""
    found = [
        *(_case(case, root) for case in root.cases),
        *(_orphan(orphan) for orphan in root.orphans),
        *(_refusal(refusal) for refusal in root.refusals),
    ]
    return [subject for subject in found if _wanted(subject, selection)]


def _wanted(subject: Subject, selection: Selection) -> bool:
    by_name = any(fnmatchcase(subject.definition_name, glob) for glob in selection.definitions)
    by_uuid = any(subject.uuid.startswith(text.lower()) for text in selection.workloads)
    return (by_name or not selection.definitions) and (by_uuid or not selection.workloads)


def _case(case: Case, root: Root) -> Subject:
    decided = None
    if case.random_inputs:
        decided = random_inputs(case.random_inputs)
    elif case.outputs is None:
        decided = NO_ENGINE_OUTPUT
    inputs: dict[str, StoredTensor | int | float | bool] = {}
    for name, source in case.inputs.items():
        if isinstance(source, FileTensor):
            inputs[name] = _stored(source)
        elif isinstance(source, ScalarInput):
            inputs[name] = source.value
    return Subject(
        uuid=case.capture_uuid,
        definition_name=case.definition,
        definition=root.definitions[case.definition],
        axes=case.axes,
        inputs=inputs,
        outputs={name: _stored(source) for name, source in (case.outputs or {}).items()},
        decided=decided,
        origin=case.where,
    )


def _stored(source: FileTensor) -> StoredTensor:
    """A file named by its content's digest must have that content; other names promise nothing."""
    stem = Path(source.location).stem
    named = source.key == TENSOR_KEY and DIGEST.fullmatch(stem)
    return StoredTensor(source.location, source.key, stem if named else None)


def _orphan(orphan: Orphan) -> Subject:
    why = "its workload's line is torn" if orphan.torn else "no workload row has its uuid"
    return Subject(
        uuid=orphan.uuid,
        definition_name=orphan.definition,
        decided=Decided("skipped", f"orphan receipt: {why}"),
        origin=orphan.where,
    )


def _refusal(refusal: Refusal) -> Subject:
    return Subject(
        uuid=refusal.uuid or refusal.where,
        definition_name=refusal.definition or "-",
        decided=Decided("error", str(refusal)),
        origin=refusal.where,
    )
