"""A definition as FlashInfer-Trace can hold it, with the reference fitted to match.

The format knows eleven dtypes: any other is exported as whole numbers of the same size, with a tag
`storage:<name>=<dtype>`, and the reference views them back. An input with a constant axis of 0 (a
prefix of no rows) is left out, and the reference makes it. A definition that needs neither keeps
its reference word for word, and so the trust in it, unless `run` takes other parameters than the
inputs, as somebody's own may: flashinfer-bench counts them. The original body comes back through
the rows that kclab puts beside the export.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kclab.core.definition import Definition, TensorSpec
from kclab.core.definition_body import DTYPE_ALIASES, TRACE_DTYPES
from kclab.core.digest import DTYPES
from kclab.core.errors import DefinitionInvalid

TRACE_NAMES = {torch: trace for trace, torch in DTYPE_ALIASES.items()}
WHOLE_NUMBERS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
"""Bytes of an element to the dtype that stands for it."""


@dataclass(frozen=True, slots=True)
class TraceDefinition:
    """What a definition becomes."""

    name: str
    body: dict[str, Any]
    storage: Mapping[str, str]
    """Input or output to the dtype that its exported blobs have, where it is another."""
    dropped: frozenset[str]
    """Inputs without elements, which the exported interface lacks."""


def storage_dtype(dtype: str) -> str:
    """The dtype under which the format can hold a tensor's bytes."""
    if TRACE_NAMES.get(dtype, dtype) in TRACE_DTYPES:
        return dtype
    return WHOLE_NUMBERS[DTYPES[dtype].itemsize]


def trace_definition(definition: Definition, name: str) -> TraceDefinition:
    """`definition` under `name`; raises DefinitionInvalid when the format cannot hold it."""
    if definition.reference_problem is not None:
        raise DefinitionInvalid(f"{definition.name}: {definition.reference_problem}")
    specs = {**definition.inputs, **definition.outputs}
    dropped = frozenset(n for n, s in definition.inputs.items() if _is_empty(definition, s))
    storage = {
        n: storage_dtype(s.dtype)
        for n, s in specs.items()
        if s.shape is not None and n not in dropped and storage_dtype(s.dtype) != s.dtype
    }
    body = {**definition.body, "name": name}
    for kind in ("inputs", "outputs"):
        body[kind] = {
            n: {**spec, "dtype": _trace_dtype(specs[n], storage.get(n))}
            for n, spec in definition.body[kind].items()
            if n not in dropped
        }
    if storage:
        tags = [f"storage:{n}={specs[n].dtype}" for n in storage]
        body["tags"] = [*(definition.body.get("tags") or []), *tags]
    if storage or dropped or _parameters(definition.reference) != list(definition.inputs):
        body["reference"] = _fitted_reference(definition, storage, dropped)
    return TraceDefinition(name, body, storage, dropped)


def _is_empty(definition: Definition, spec: TensorSpec) -> bool:
    return any(definition.axes[axis].value == 0 for axis in spec.shape or ())


def _trace_dtype(spec: TensorSpec, stored: str | None) -> str:
    if spec.shape is None and spec.dtype not in TRACE_DTYPES:
        # A Python scalar has no bytes to keep: its kind is enough.
        return "int64" if DTYPES[spec.dtype].code[0] in "IU" else "float32"
    dtype = stored or spec.dtype
    return TRACE_NAMES.get(dtype, dtype)


def _fitted_reference(
    definition: Definition, storage: Mapping[str, str], dropped: frozenset[str]
) -> str:
    """The reference's source, and a `run` that restores dtypes and empty inputs around it."""
    kept = [name for name in definition.inputs if name not in dropped]
    lines = [f"def run({', '.join(kept)}):", "    import torch", ""]
    for name in kept:
        if name in storage:
            dtype = definition.inputs[name].dtype
            lines.append(f"    {name} = {name}.view(torch.{dtype})")
    for name in sorted(dropped, key=list(definition.inputs).index):
        lines.append(f"    {name} = {_empty(definition, name, kept)}")
    known = _parameters(definition.reference)
    named = all(name in known for name in definition.inputs)
    call = ", ".join(f"{name}={name}" if named else name for name in definition.inputs)
    lines += [f"    result = _kclab_reference({call})", *_restored_outputs(definition, storage)]
    source = definition.reference.rstrip("\n")
    return f"{source}\n\n\n_kclab_reference = run\n\n\n" + "\n".join(lines) + "\n"


def _parameters(reference: str) -> list[str]:
    """The names of `run`'s parameters, `*` and `**` included."""
    run = [
        node
        for node in ast.parse(reference).body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ][-1].args
    plain = [*run.posonlyargs, *run.args, *run.kwonlyargs]
    starred = [arg for arg in (run.vararg, run.kwarg) if arg is not None]
    return [arg.arg for arg in plain] + [f"*{arg.arg}" for arg in starred]


def _empty(definition: Definition, name: str, kept: list[str]) -> str:
    spec = definition.inputs[name]
    sizes = [_size(definition, axis, kept) for axis in spec.shape or ()]
    tensors = [n for n in kept if definition.inputs[n].shape]
    if not tensors:
        raise DefinitionInvalid(f"{definition.name}: nothing but {name} says which device to use")
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    return f"torch.empty({shape}, dtype=torch.{spec.dtype}, device={tensors[0]}.device)"


def _size(definition: Definition, axis: str, kept: list[str]) -> str:
    value = definition.axes[axis].value
    if value is not None:
        return str(value)
    for name in kept:
        shape = definition.inputs[name].shape or ()
        if axis in shape:
            return f"{name}.shape[{shape.index(axis)}]"
    raise DefinitionInvalid(f"{definition.name}: only an input without elements has axis {axis}")


def _restored_outputs(definition: Definition, storage: Mapping[str, str]) -> list[str]:
    views = [
        f"    outputs[{i}] = outputs[{i}].view(torch.{storage[name]})"
        for i, name in enumerate(definition.outputs)
        if name in storage
    ]
    if not views:
        return ["    return result"]
    wrap = "    outputs = list(result) if isinstance(result, (tuple, list)) else [result]"
    end = "    return tuple(outputs)" if len(definition.outputs) > 1 else "    return outputs[0]"
    return [wrap, *views, end]
