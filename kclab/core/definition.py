"""A definition: the exact interface of one operator, and a reference that says what it computes.

The format is FlashInfer-Trace's (`definitions/<op_type>/<name>.json`). kclab adds two keys that
other tools ignore: `tolerance`, per output, and `capture`, which says what feeds it. No torch here:
tensors appear as (dtype, shape) pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

from kclab.core import definition_body as rules
from kclab.core.definition_body import Axis, TensorSpec
from kclab.core.digest import DTYPES, canonical_json, text_sha256
from kclab.core.errors import DefinitionInvalid
from kclab.core.units import counted

__all__ = ["Axis", "Definition", "Scalar", "TensorFacts", "TensorSpec", "python_scalar"]

Scalar: TypeAlias = int | float | bool
"""The value of an input without a shape."""
TensorFacts: TypeAlias = tuple[str, Sequence[int]]
"""(dtype, shape) of a tensor; the dtype may carry torch's `torch.` prefix."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One operator's interface, reference and comparison rules."""

    name: str
    op_type: str
    """The operator's category; the folder that the definition's file lies in."""
    axes: Mapping[str, Axis]
    inputs: Mapping[str, TensorSpec]
    """In call order."""
    outputs: Mapping[str, TensorSpec]
    """In the order that the reference returns them."""
    reference: str
    """Python source with a top-level `def run(<inputs in order>)`."""
    reference_sha256: str
    """What trust is given to; see `kclab.core.trust`."""
    reference_problem: str | None
    """Why the reference cannot run; None for every definition made by `from_body`."""
    tolerance: Mapping[str, Mapping[str, Any]]
    """By output name; outputs without an entry take the defaults of their dtype."""
    capture: Mapping[str, Any]
    """What feeds this definition, for instance `{"adapter": "torch"}`."""
    body: Mapping[str, Any]
    """The whole JSON object, with literal dimensions made constant axes."""
    sha256: str
    """Of the body as canonical JSON: two versions of one name differ in it."""

    @classmethod
    def from_body(cls, body: object, where: str = "definition") -> Definition:
        """Validate a JSON body; `where` begins every message.

        Raises DefinitionInvalid for whatever FlashInfer-Trace rejects, and for broken kclab keys.
        """
        definition = cls.from_foreign(body, where)
        problem = definition.reference_problem
        rules.require(problem is None, where, problem or "")
        return definition

    @classmethod
    def from_foreign(cls, body: object, where: str = "definition") -> Definition:
        """As `from_body`, but a broken reference is kept and named in `reference_problem`.

        For definitions that come with a dataset: their workloads become failed rows, no more.
        """
        if not isinstance(body, Mapping):
            raise DefinitionInvalid(f"{where}: a definition is a JSON object.")
        body = rules.without_literal_dimensions(body)
        name = rules.path_field(body, "name", where)
        where = where if PurePath(where).stem == name else f"{where} ({name})"
        axes = rules.read_axes(body, where)
        inputs = rules.read_tensors(body, "inputs", axes, where)
        outputs = rules.read_tensors(body, "outputs", axes, where)
        both = sorted(set(inputs) & set(outputs))
        rules.require(not both, where, f"{', '.join(both)} is both an input and an output.")
        rules.check_notes(body, where)
        reference = rules.text_field(body, "reference", where)
        capture = body.get("capture") or {}
        rules.require(isinstance(capture, Mapping), where, "'capture' must be an object.")
        return cls(
            name=name,
            op_type=rules.path_field(body, "op_type", where),
            axes=axes,
            inputs=inputs,
            outputs=outputs,
            reference=reference,
            reference_sha256=text_sha256(reference),
            reference_problem=rules.reference_problem(reference),
            tolerance=rules.read_tolerance(body, outputs, where),
            capture=capture,
            body=body,
            sha256=text_sha256(canonical_json(body)),
        )

    @property
    def var_axes(self) -> tuple[str, ...]:
        """The axes that each workload binds, in the body's order."""
        return tuple(name for name, axis in self.axes.items() if axis.kind == "var")

    @property
    def const_axes(self) -> dict[str, int]:
        """The sizes that the definition fixes."""
        return {name: axis.value for name, axis in self.axes.items() if axis.value is not None}

    def spec(self, name: str) -> TensorSpec:
        """The spec of an input or output; DefinitionInvalid names one that does not exist."""
        found = self.inputs.get(name) or self.outputs.get(name)
        if found is None:
            raise DefinitionInvalid(f"{self.name} has no input or output {name!r}.")
        return found

    def bind_axes(
        self, shapes: Mapping[str, Sequence[int]], known: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Every axis's size from tensors' shapes (inputs or outputs, by name).

        `known` holds sizes that are declared elsewhere. Raises DefinitionInvalid naming the tensor
        and the axis that contradict each other, or an input's axis that nothing binds. An axis of
        outputs alone may stay unbound.
        """
        axes = {**(known or {}), **self.const_axes}
        for name, shape in shapes.items():
            self._bind(name, shape, axes)
        for name, spec in self.inputs.items():
            missing = [axis for axis in spec.shape or () if axis not in axes]
            if missing:
                raise DefinitionInvalid(
                    f"{self.name}: nothing gives axis {missing[0]!r} of {name} a size."
                )
        return {axis: axes[axis] for axis in self.axes if axis in axes}

    def _bind(self, name: str, shape: Sequence[int], axes: dict[str, int]) -> None:
        names = self.spec(name).shape
        if names is None:
            raise DefinitionInvalid(f"{self.name}: {name} is a Python scalar; it has no shape.")
        if len(names) != len(shape):
            raise DefinitionInvalid(
                f"{self.name}: {name} has shape {list(shape)}; it needs"
                f" {counted(len(names), 'dimension')} [{', '.join(names)}]."
            )
        for position, (axis, size) in enumerate(zip(names, shape, strict=True)):
            if axes.setdefault(axis, size) != size:
                raise DefinitionInvalid(
                    f"{self.name}: {name} has {size} at dimension {position}, where axis"
                    f" {axis!r} is {axes[axis]}."
                )

    def check_inputs(self, values: Mapping[str, TensorFacts | Scalar]) -> dict[str, int]:
        """Check a complete set of inputs and return every axis that they bind.

        Raises DefinitionInvalid for a missing or foreign input, a dtype, a rank, a constant
        dimension, an axis with two sizes, or a tensor where a Python scalar belongs.
        """
        self._check_set(values, self.inputs, "input")
        return self.bind_axes(self._checked_shapes(values))

    def check_outputs(
        self, values: Mapping[str, TensorFacts | Scalar], axes: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Check a complete set of outputs against the `axes` that the inputs bound."""
        self._check_set(values, self.outputs, "output")
        bound = {**(axes or {}), **self.const_axes}
        for name, shape in self._checked_shapes(values).items():
            self._bind(name, shape, bound)
        return bound

    def _check_set(
        self, values: Mapping[str, Any], specs: Mapping[str, TensorSpec], kind: str
    ) -> None:
        for name in specs:
            if name not in values:
                raise DefinitionInvalid(f"{self.name}: {kind} {name} is missing.")
        for name in values:
            if name not in specs:
                raise DefinitionInvalid(f"{self.name} has no {kind} {name!r}.")

    def _checked_shapes(self, values: Mapping[str, Any]) -> dict[str, Sequence[int]]:
        shapes = {}
        for name, value in values.items():
            spec = self.spec(name)
            if spec.shape is None:
                self._check_scalar(name, spec, value)
            else:
                shapes[name] = self._checked_shape(name, spec, value)
        return shapes

    def _checked_shape(self, name: str, spec: TensorSpec, value: Any) -> Sequence[int]:
        if not isinstance(value, tuple):
            raise DefinitionInvalid(f"{self.name}: {name} must be a tensor; found {value!r}.")
        dtype, shape = value
        if dtype.removeprefix("torch.") != spec.dtype:
            raise DefinitionInvalid(f"{self.name}: {name} is {dtype}; it must be {spec.dtype}.")
        return tuple(shape)

    def _check_scalar(self, name: str, spec: TensorSpec, value: Any) -> None:
        if isinstance(value, tuple):
            raise DefinitionInvalid(
                f"{self.name}: {name} must stay a Python scalar; found a tensor {value[0]}."
            )
        kind = type(python_scalar(name, value))
        code = DTYPES[spec.dtype].code
        wanted = (bool,) if code == "BOOL" else (int,) if code[0] in "IU" else (int, float)
        if kind not in wanted:
            raise DefinitionInvalid(f"{self.name}: {name} is {value!r}; it must be {spec.dtype}.")


def python_scalar(name: str, value: object) -> Scalar:
    """`value` as a plain int, float or bool; a NumPy scalar is converted.

    Raises DefinitionInvalid for anything else: a tensor, an array, text, None.
    """
    numpy = type(value).__module__ == "numpy" and not getattr(value, "shape", None)
    # NumPy's float64 is a float: the exact type decides, so that rows hold plain JSON.
    plain = getattr(value, "item", lambda: None)() if numpy else value
    for kind in (bool, int, float):
        if type(plain) is kind:
            return plain
    raise DefinitionInvalid(
        f"{name} must be a Python int, float or bool; found {type(value).__name__}."
    )
