"""How `kclab definitions` shows a definition: one row of a list, or its tensors."""

from __future__ import annotations

from typing import Any

from kclab.cli.output import Column
from kclab.cli.show import short
from kclab.core.definition import Definition, TensorSpec
from kclab.core.tolerance import tolerance_for
from kclab.core.trust import is_trusted
from kclab.db.definitions import KnownDefinition, family_by_source


def word(value: Any) -> str:
    """yes or no for a bool; anything else as it prints."""
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


LIST_COLUMNS = (
    Column("name"),
    Column("op_type"),
    Column("family"),
    Column("axes", wide=True),
    Column("trusted", show=word),
    Column("stored", "in store", show=word),
    Column("origin", wide=True),
    Column("sha256", show=short),
    Column("reference_sha256", hidden=True),
)


def summary(entry: KnownDefinition) -> dict[str, Any]:
    """A row of LIST_COLUMNS."""
    definition = entry.definition
    return {
        "name": definition.name,
        "op_type": definition.op_type,
        "family": family_by_source(definition),
        "axes": _axes(definition),
        "trusted": is_trusted(definition.reference_sha256),
        "stored": entry.stored,
        "origin": entry.origin,
        "sha256": definition.sha256,
        "reference_sha256": definition.reference_sha256,
    }


def _axes(definition: Definition) -> str:
    """`M N=4096 K=64`: constants with their size."""
    axes = definition.axes.items()
    return " ".join(name if a.value is None else f"{name}={a.value}" for name, a in axes)


TENSOR_COLUMNS = tuple(
    Column(key, wide=key == "about") for key in ("kind", "name", "dtype", "shape", "rule", "about")
)


def tensors(definition: Definition) -> list[dict[str, Any]]:
    """Rows of TENSOR_COLUMNS: inputs, then outputs with the rule that each is judged by."""
    kinds = (("input", definition.inputs), ("output", definition.outputs))
    return [
        {
            "kind": kind,
            "name": name,
            "dtype": spec.dtype,
            "shape": _shape(definition, spec),
            "rule": _tolerance(definition, name) if kind == "output" else None,
            "about": definition.body[f"{kind}s"][name].get("description"),
        }
        for kind, specs in kinds
        for name, spec in specs.items()
    ]


def _shape(definition: Definition, spec: TensorSpec) -> str:
    if spec.shape is None:
        return "scalar"
    sizes = definition.const_axes
    return f"[{', '.join(f'{a}={sizes[a]}' if a in sizes else a for a in spec.shape)}]"


def _tolerance(definition: Definition, output: str) -> str:
    rule = tolerance_for(definition, output)
    bounds = "" if rule.rtol is None else f" rtol {rule.rtol:g} atol {rule.atol:g}"
    return f"{rule.policy}{bounds}{' inf allowed' if rule.allow_inf else ''}"
