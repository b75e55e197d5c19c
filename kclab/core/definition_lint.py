"""What other FlashInfer-Trace tools would stumble over in a definition that kclab can use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kclab.core.definition import Definition
from kclab.core.definition_body import TRACE_DTYPES


def portability_notes(definition: Definition, path: Path | None = None) -> list[str]:
    """One short sentence for each point; none means that other tools take it as it is."""
    notes = [*_foreign_dtypes(definition), *_unbound_axes(definition)]
    if path is not None and path.stem != definition.name:
        notes.append(f"the file should be called {definition.name}.json")
    if path is not None and path.parent.name != definition.op_type:
        notes.append(f"the file should lie in a folder {definition.op_type}")
    return notes


def _foreign_dtypes(definition: Definition) -> Iterator[str]:
    for kind in ("inputs", "outputs"):
        for name, spec in definition.body[kind].items():
            if spec["dtype"] not in TRACE_DTYPES:
                yield f"{name} is {spec['dtype']}, a dtype that only a kclab store knows"


def _unbound_axes(definition: Definition) -> Iterator[str]:
    bound = {axis for spec in definition.inputs.values() for axis in spec.shape or ()}
    for axis in definition.var_axes:
        if axis not in bound:
            yield f"axis {axis} is of no input, so other tools cannot bind it"
