"""Reading a definition's JSON body: every rule of the format, each broken one told in a sentence.

The rules are FlashInfer-Trace's, plus those of kclab's own keys (`tolerance`, `capture`). Two
things are wider here than there: dtypes may be any that a store can hold, and a dimension may be
written as a number, which becomes a constant axis on entry.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kclab.core.digest import DTYPES
from kclab.core.errors import DefinitionInvalid
from kclab.core.tolerance import parse_tolerance

DTYPE_ALIASES = {"float4_e2m1": "float4_e2m1fn_x2"}
"""FlashInfer-Trace's dtype names that differ from torch's."""

TRACE_DTYPES = (
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1"),
    *("int64", "int32", "int16", "int8", "bool"),
)
"""The dtype names that other FlashInfer-Trace tools accept."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named dimension: a constant of the definition, or bound by each workload."""

    kind: Literal["const", "var"]
    value: int | None = None
    """The size of a constant axis; None for a variable one."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one input or output looks like."""

    shape: tuple[str, ...] | None
    """Axis names, outermost first; `()` is a 0-d tensor, None a Python scalar."""
    dtype: str
    """torch's name without the `torch.` prefix."""


def require(holds: object, where: str, problem: str) -> None:
    """Raise DefinitionInvalid `where: problem` unless `holds`."""
    if not holds:
        raise DefinitionInvalid(f"{where}: {problem}")


def text_field(body: Mapping[str, Any], key: str, where: str) -> str:
    """The non-empty string `body[key]`."""
    value = body.get(key)
    require(isinstance(value, str) and value, where, f"{key!r} must be a non-empty string.")
    return str(value)


def path_field(body: Mapping[str, Any], key: str, where: str) -> str:
    """A non-empty string that can be a file's or folder's name: definitions are files."""
    value = text_field(body, key, where)
    bad = value.startswith(".") or any(c in '/\\:*?"<>|' or ord(c) < 32 for c in value)
    require(not bad, where, f"{key} {value!r} cannot be a file name; use letters, digits, _ . -")
    return value


def without_literal_dimensions(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with each number in a shape replaced by a constant axis of that size."""
    result = dict(body)
    axes = body.get("axes")
    if not isinstance(axes, Mapping):
        return result
    named = dict(axes)
    for key in ("inputs", "outputs"):
        if isinstance(body.get(key), Mapping):
            result[key] = {n: _named_shape(spec, named) for n, spec in body[key].items()}
    result["axes"] = named
    return result


def _named_shape(spec: Any, axes: dict[str, Any]) -> Any:
    shape = spec.get("shape") if isinstance(spec, Mapping) else None
    if not isinstance(shape, list) or not any(type(dim) is int for dim in shape):
        return spec
    return {**spec, "shape": [_axis_for(d, axes) if type(d) is int else d for d in shape]}


def _axis_for(size: int, axes: dict[str, Any]) -> str:
    name = f"const_{size}"
    while name in axes and not _is_const(axes[name], size):
        name += "_"
    axes.setdefault(name, {"type": "const", "value": size})
    return name


def _is_const(axis: Any, size: int) -> bool:
    return isinstance(axis, Mapping) and axis.get("type") == "const" and axis.get("value") == size


def read_axes(body: Mapping[str, Any], where: str) -> dict[str, Axis]:
    """The axes, in the body's order."""
    return {
        name: _read_axis(axis, f"{where}: axis {name!r}")
        for name, axis in _named_objects(body, "axes", where).items()
    }


def _read_axis(axis: Mapping[str, Any], where: str) -> Axis:
    kind = axis.get("type", "const" if "value" in axis else None)
    require(kind in ("const", "var"), where, f'type is {kind!r}; it must be "const" or "var".')
    _require_text(axis, "description", where)
    if kind == "var":
        return Axis("var")
    value = axis.get("value")
    valid = type(value) is int and value >= 0
    require(valid, where, f"a const axis needs a value of 0 or more; found {value!r}.")
    return Axis("const", value)


def read_tensors(
    body: Mapping[str, Any], key: str, axes: Mapping[str, Axis], where: str
) -> dict[str, TensorSpec]:
    """`body["inputs"]` or `body["outputs"]`, in call order."""
    return {
        name: _read_tensor(spec, axes, f"{where}: {key[:-1]} {name!r}")
        for name, spec in _named_objects(body, key, where).items()
    }


def _read_tensor(spec: Mapping[str, Any], axes: Mapping[str, Axis], where: str) -> TensorSpec:
    require("shape" in spec, where, "shape is missing; a Python scalar has null there.")
    shape = spec["shape"]
    valid = shape is None or isinstance(shape, list)
    require(valid, where, f"shape must be a list of axis names or null; found {shape!r}.")
    for dim in shape or ():
        require(isinstance(dim, str), where, f"shape has {dim!r}, which is no axis name.")
        require(dim in axes, where, f"shape names axis {dim!r}, which `axes` does not define.")
    dtype = spec.get("dtype")
    require(isinstance(dtype, str), where, f"dtype must be a string; found {dtype!r}.")
    dtype = DTYPE_ALIASES.get(str(dtype), str(dtype))
    known = ", ".join(DTYPES)
    require(dtype in DTYPES, where, f"dtype {dtype!r} is none of {known}.")
    _require_text(spec, "description", where)
    return TensorSpec(None if shape is None else tuple(shape), dtype)


def _named_objects(body: Mapping[str, Any], key: str, where: str) -> dict[str, Mapping[str, Any]]:
    value = body.get(key)
    require(isinstance(value, Mapping), where, f"{key!r} must be an object; found {value!r}.")
    for name, item in dict(value or {}).items():
        require(isinstance(name, str) and name, where, f"{key!r} has an empty name.")
        require(isinstance(item, Mapping), where, f"{key} {name!r} must be an object.")
    return dict(value or {})


def _require_text(body: Mapping[str, Any], key: str, where: str) -> None:
    value = body.get(key)
    require(value is None or isinstance(value, str), where, f"{key} must be a string.")


def check_notes(body: Mapping[str, Any], where: str) -> None:
    """`description`, `tags` and `constraints`; constraints are parsed, never evaluated."""
    _require_text(body, "description", where)
    for key in ("tags", "constraints"):
        value = body.get(key, [])
        valid = isinstance(value, list) and all(isinstance(v, str) and v for v in value)
        require(valid, where, f"{key!r} must be a list of non-empty strings.")
    for constraint in body.get("constraints", ()):
        try:
            ast.parse(constraint, mode="eval")
        except (SyntaxError, ValueError) as error:
            message = f"constraint {constraint!r} is not a Python expression ({error})."
            raise DefinitionInvalid(f"{where}: {message}") from error


def reference_problem(source: str) -> str | None:
    """Why a reference cannot run, or None: it is parsed, never executed."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        at = "" if line is None else f" at its line {line}"
        return f"the reference is not valid Python{at} ({getattr(error, 'msg', error)})."
    if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
        return None
    return "the reference has no top-level `def run(...)`."


def read_tolerance(
    body: Mapping[str, Any], outputs: Mapping[str, TensorSpec], where: str
) -> dict[str, dict[str, Any]]:
    """kclab's `tolerance`: output name to what the comparison allows there."""
    if body.get("tolerance") is None:
        return {}
    tolerance = _named_objects(body, "tolerance", where)
    for name, entry in tolerance.items():
        require(name in outputs, where, f"tolerance names {name!r}, which is no output.")
        parse_tolerance(entry, outputs[name].dtype, f"{where}: tolerance of {name!r}")
    return {name: dict(entry) for name, entry in tolerance.items()}
