"""One line of a dataset into one typed row: descriptors, axes, receipts; or why it is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kclab.blob.safetensors_file import TENSOR_KEY
from kclab.core.definition import Definition
from kclab.core.errors import DatasetRefused
from kclab.dataset.cases import Case, FileTensor, InputSource, RandomInput, ScalarInput
from kclab.dataset.paths import Containment

CLAIM = re.compile(r"(?:^|/)([0-9a-f]{64})\.safetensors$")
ROW_KEYS = frozenset(("definition", "workload", "solution", "evaluation"))
WORKLOAD_KEYS = frozenset(("uuid", "axes", "inputs"))


class RowRefused(Exception):
    """A row that cannot be used; `unsafe` when a path in it tried to leave the root."""

    def __init__(self, reason: str, *, unsafe: bool = False) -> None:
        super().__init__(reason)
        self.unsafe = unsafe


def identify(row: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(definition name, workload uuid) as far as the row tells them."""
    workload = row.get("workload")
    uuid = workload.get("uuid") if isinstance(workload, Mapping) else row.get("uuid")
    name = row.get("definition")
    return (name if isinstance(name, str) else None, uuid if isinstance(uuid, str) else None)


def read_case(
    row: Mapping[str, Any],
    where: str,
    definitions: Mapping[str, Definition],
    files: TensorFiles,
) -> Case:
    """A workload row; raises RowRefused."""
    workload = row.get("workload")
    name, uuid = identify(row)
    if name is None:
        raise RowRefused("it names no definition")
    if not isinstance(workload, dict):
        raise RowRefused("it has no workload")
    if not uuid:
        raise RowRefused("its workload has no uuid")
    if row.get("solution") is not None or row.get("evaluation") is not None:
        raise RowRefused("it is no workload row: it has a solution or an evaluation")
    axes, inputs = workload.get("axes"), workload.get("inputs")
    if not isinstance(axes, dict) or not all(map(_is_size, axes.values())):
        raise RowRefused("its axes are no sizes")
    if not isinstance(inputs, dict):
        raise RowRefused("its inputs are no object")
    return Case(
        definition=name,
        uuid=uuid,
        axes=axes,
        inputs=_inputs(inputs, _definition(name, definitions), files),
        where=where,
        extra=_unknown_keys(row, workload),
    )


def _unknown_keys(row: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    extra = {key: row[key] for key in row.keys() - ROW_KEYS}
    more = {key: workload[key] for key in workload.keys() - WORKLOAD_KEYS}
    return {**extra, "workload": more} if more else extra


def read_outputs(
    expected: Any, definition: Definition, files: TensorFiles
) -> dict[str, FileTensor]:
    """A receipt's `expected_output` by name, in the definition's order; raises RowRefused.

    One descriptor stands for the only output. Several are matched by name: receipts are written
    with sorted keys, so their own order says nothing.
    """
    if not isinstance(expected, dict):
        raise RowRefused("its expected_output is no object")
    names = definition.outputs
    if isinstance(expected.get("type"), str):
        if len(names) != 1:
            raise RowRefused(f"it has one output, {definition.name} has {', '.join(names)}")
        expected = dict.fromkeys(names, expected)
    if expected.keys() != names.keys():
        raise RowRefused(_set_difference("output", expected, names, definition.name))
    outputs = {}
    for name in names:
        source = read_source(expected[name], name, files)
        if not isinstance(source, FileTensor):
            raise RowRefused(f"output {name} is not a stored tensor")
        outputs[name] = source
    return outputs


def read_source(descriptor: Any, name: str, files: TensorFiles) -> InputSource:
    """One descriptor of the format; raises RowRefused."""
    kind = descriptor.get("type") if isinstance(descriptor, dict) else None
    if kind == "safetensors":
        return files.tensor(descriptor, name)
    if kind == "scalar":
        value = descriptor.get("value")
        if not isinstance(value, int | float):
            raise RowRefused(f"scalar {name} is {value!r}, no number or bool")
        return ScalarInput(value)
    if kind == "random":
        return RandomInput(descriptor)
    raise RowRefused(f"{name} has type {kind!r}; known are safetensors, scalar and random")


class TensorFiles:
    """The tensors that rows name; each path is checked once, however many rows name it."""

    def __init__(self, root: Path) -> None:
        self.containment = Containment(root)
        self._known: dict[tuple[str, str], FileTensor] = {}

    def tensor(self, descriptor: Mapping[str, Any], name: str) -> FileTensor:
        """The tensor of a safetensors descriptor; raises RowRefused."""
        text, key = descriptor.get("path"), descriptor.get("tensor_key")
        if not isinstance(text, str) or not isinstance(key, str):
            raise RowRefused(f"{name} lacks a path or tensor_key")
        found = self._known.get((text, key))
        if found is None:
            match = CLAIM.search(text) if key == TENSOR_KEY else None
            claim = match[1] if match else None
            try:
                found = FileTensor(self.containment.locate(text), key, text, claim)
            except DatasetRefused as error:
                raise RowRefused(f"{name}: {error}", unsafe=True) from None
            self._known[text, key] = found
        return found


def _set_difference(
    kind: str, given: Mapping[str, Any], wanted: Mapping[str, Any], definition: str
) -> str:
    missing = [name for name in wanted if name not in given]
    foreign = [str(name) for name in given if name not in wanted]
    if missing:
        return f"{kind} {', '.join(missing)} is missing"
    return f"{definition} has no {kind} {', '.join(foreign)}"


def _inputs(
    inputs: dict[str, Any], definition: Definition, files: TensorFiles
) -> dict[str, InputSource]:
    wanted = definition.inputs
    if inputs.keys() != wanted.keys():
        wanted = {n: s for n, s in wanted.items() if n in inputs or not _optional(definition, n)}
        if inputs.keys() != wanted.keys():
            raise RowRefused(_set_difference("input", inputs, wanted, definition.name))
    read: dict[str, InputSource] = {}
    for name, spec in wanted.items():
        read[name] = source = read_source(inputs[name], name, files)
        scalar = isinstance(source, ScalarInput)
        if scalar != (spec.shape is None) and not isinstance(source, RandomInput):
            kind = "Python scalar" if spec.shape is None else "tensor"
            raise RowRefused(f"{name} must be a {kind}")
    return read


def _optional(definition: Definition, name: str) -> bool:
    return bool(definition.body["inputs"][name].get("optional"))


def _definition(name: str, definitions: Mapping[str, Definition]) -> Definition:
    found = definitions.get(name)
    if found is None:
        raise RowRefused(
            f"definition {name} is not among the dataset's; name its folder with --definitions"
        )
    return found


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0
