"""One line of a dataset into one typed row: descriptors, axes, receipts; or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kclab.core.definition import Definition
from kclab.core.errors import DatasetRefused
from kclab.dataset.cases import Case, FileTensor, InputSource, RandomInput, ScalarInput
from kclab.dataset.paths import Containment

ROW_KEYS = frozenset(("definition", "workload", "solution", "evaluation"))
WORKLOAD_KEYS = frozenset(("uuid", "axes", "inputs"))


class RowRefused(Exception):
    """A row that cannot be used; `unsafe` when a path in it tried to leave the root."""

    def __init__(self, reason: str, *, unsafe: bool = False) -> None:
        super().__init__(reason)
        self.unsafe = unsafe


def need(holds: object, reason: str) -> None:
    """Raise RowRefused unless `holds`."""
    if not holds:
        raise RowRefused(reason)


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
    files: Containment,
) -> Case:
    """A workload row; raises RowRefused."""
    workload = row.get("workload")
    name, uuid = identify(row)
    need(name, "it names no definition")
    need(isinstance(workload, Mapping), "it has no workload")
    need(uuid, "its workload has no uuid")
    need(row.get("solution") is None and row.get("evaluation") is None, "it is no workload row")
    assert name is not None and uuid is not None and isinstance(workload, Mapping)
    axes, inputs = workload.get("axes"), workload.get("inputs")
    need(isinstance(axes, Mapping) and all(map(_is_size, axes.values())), "its axes are no sizes")
    need(isinstance(inputs, Mapping), "its inputs are no object")
    assert isinstance(axes, Mapping) and isinstance(inputs, Mapping)
    extra = {key: value for key, value in row.items() if key not in ROW_KEYS}
    more = {key: value for key, value in workload.items() if key not in WORKLOAD_KEYS}
    return Case(
        definition=name,
        uuid=uuid,
        axes=dict(axes),
        inputs=_inputs(inputs, _definition(name, definitions), files),
        where=where,
        extra={**extra, **({"workload": more} if more else {})},
    )


def read_outputs(
    expected: Any, definition: Definition, files: Containment
) -> dict[str, FileTensor]:
    """A receipt's `expected_output` by name, in the definition's order; raises RowRefused.

    One descriptor stands for the only output. Several are matched by name: receipts are written
    with sorted keys, so their own order says nothing.
    """
    need(isinstance(expected, Mapping), "its expected_output is no object")
    names = list(definition.outputs)
    if isinstance(expected.get("type"), str):
        need(len(names) == 1, f"it has one output, {definition.name} has {', '.join(names)}")
        expected = {names[0]: expected}
    missing = [name for name in names if name not in expected]
    foreign = [str(name) for name in expected if name not in definition.outputs]
    need(not missing, f"output {', '.join(missing)} is missing")
    need(not foreign, f"{definition.name} has no output {', '.join(foreign)}")
    outputs = {}
    for name in names:
        source = read_source(expected[name], name, files)
        if not isinstance(source, FileTensor):
            raise RowRefused(f"output {name} is not a stored tensor")
        outputs[name] = source
    return outputs


def read_source(descriptor: Any, name: str, files: Containment) -> InputSource:
    """One descriptor of the format; raises RowRefused."""
    need(isinstance(descriptor, Mapping), f"{name} has no descriptor")
    kind = descriptor.get("type")
    if kind == "safetensors":
        return _file(descriptor, name, files)
    if kind == "scalar":
        value = descriptor.get("value")
        need(isinstance(value, int | float), f"scalar {name} is {value!r}, no number or bool")
        return ScalarInput(value)
    if kind == "random":
        return RandomInput(descriptor)
    raise RowRefused(f"{name} has type {kind!r}; known are safetensors, scalar and random")


def _file(descriptor: Mapping[str, Any], name: str, files: Containment) -> FileTensor:
    text, key = descriptor.get("path"), descriptor.get("tensor_key")
    need(isinstance(text, str) and isinstance(key, str), f"{name} lacks a path or tensor_key")
    assert isinstance(text, str) and isinstance(key, str)
    try:
        return FileTensor(files.locate(text), key, text)
    except DatasetRefused as error:
        raise RowRefused(f"{name}: {error}", unsafe=True) from None


def _inputs(
    inputs: Mapping[str, Any], definition: Definition, files: Containment
) -> dict[str, InputSource]:
    foreign = [str(name) for name in inputs if name not in definition.inputs]
    need(not foreign, f"{definition.name} has no input {', '.join(foreign)}")
    read: dict[str, InputSource] = {}
    for name, spec in definition.inputs.items():
        if name not in inputs and _optional(definition, name):
            continue
        need(name in inputs, f"input {name} is missing")
        read[name] = source = read_source(inputs[name], name, files)
        scalar = isinstance(source, ScalarInput)
        fits = isinstance(source, RandomInput) or scalar == (spec.shape is None)
        need(fits, f"{name} must be a {'Python scalar' if spec.shape is None else 'tensor'}")
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
