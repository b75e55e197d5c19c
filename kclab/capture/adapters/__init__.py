"""Adapters name operator calls: they turn what an engine runs into inputs of a definition.

An adapter is a class with no arguments, registered under the entry point group `kclab.adapters`.
It feeds the tap in one of two ways, or both:

- `handlers` for torch operators (`aten::mm`), called while a selected step runs, on every call of
  the operator that happens below autograd and autocast;
- `attach(tap)`, which wraps an engine's own functions or methods with `tap.wrap` and captures with
  `tap.begin` and `tap.finish`. Never with nn.Module hooks: engines look for those, and choose other
  kernels where they find one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kclab.core.errors import BadUsage, KclabError

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.capture.tap import Tap

__all__ = [
    "Adapter",
    "CannotCapture",
    "Handler",
    "Late",
    "OperatorCall",
    "Sighting",
    "Uncaptured",
    "load_adapters",
]

GROUP = "kclab.adapters"
"""The entry point group that adapters register under."""


class CannotCapture(KclabError):
    """A wanted call that turns out not to be capturable; its message is the reason counted."""


@dataclass(frozen=True, slots=True)
class Late:
    """An input that has to be gathered: done only for a call that is wanted, before it runs."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]
    """May raise CannotCapture."""


@dataclass(slots=True)
class Sighting:
    """A call that is about to happen, in a family's terms."""

    family: str
    """Name of the family in `kclab.core.families`; or of a definition, shipped or the user's."""
    sizes: Mapping[str, Any]
    """Sizes and options of the family's `make`; none for a definition."""
    inputs: Mapping[str, Tensor | Late | int | float | bool]
    """By the definition's input names; views are fine, they are read only if wanted."""
    outputs: Callable[[Any], Mapping[str, Tensor]]
    """From what the call returned to the definition's outputs."""
    operation: str
    """What the engine called: `aten.mm`."""
    variant: str | None = None
    """What tells calls of one definition apart within a step."""
    receipt: Mapping[str, Any] = field(default_factory=dict)
    """Provenance that only the adapter knows."""


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A call that no definition describes; counted, and the run says so."""

    what: str
    """The operator or definition: `aten.bmm`."""
    reason: str
    """In a few words: `batched`."""


class OperatorCall:
    """One call of a torch operator, with its arguments by name."""

    __slots__ = ("args", "func", "kwargs", "name")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.name: str = operator_name(func)
        """`aten.mm`, without the overload."""

    def argument(self, name: str) -> Any:
        """The argument called `name` in the operator's schema, its default, or None."""
        position, default = parameters(self.func).get(name, (None, None))
        if position is not None and position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@cache
def parameters(func: Any) -> dict[str, tuple[int, Any]]:
    """Position and default of each of an operator's arguments; its schema is slow to read."""
    return {p.name: (i, p.default_value) for i, p in enumerate(func._schema.arguments)}


@cache
def operator_name(func: Any) -> str:
    """`aten.mm` for any overload of it."""
    return str(func._schema.name).replace("::", ".")


Handler: TypeAlias = Callable[[OperatorCall], "Sighting | Uncaptured | None"]
"""Names one operator call before it runs; None for a call that is of no interest."""


class Adapter(Protocol):
    """What the tap asks of an adapter."""

    name: str
    families: tuple[str, ...]
    """The families that it feeds."""
    roots: tuple[str, ...]
    """Classes whose calls are the steps, unless the user names one: `package.module.Class`."""
    handlers: Mapping[str, Handler]
    """By operator, without the overload: `aten::mm`."""

    def attach(self, tap: Tap) -> None:
        """Wrap the engine's own operators; called once, before or after the engine is imported.

        Raises EnvironmentLacking naming the target that this release of the engine lacks.
        """


def load_adapters(names: Sequence[str]) -> list[Adapter]:
    """The adapters with these names, in order; BadUsage names one that is not installed."""
    known = {point.name: point for point in entry_points(group=GROUP)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadUsage(f"no adapter {unknown[0]!r}; there are {', '.join(sorted(known))}.")
    return [known[name].load()() for name in dict.fromkeys(names)]
