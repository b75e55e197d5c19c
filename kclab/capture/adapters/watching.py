"""What adapters share: finding a target, and wrapping it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kclab.capture.adapters import Sighting, Uncaptured
from kclab.core.errors import EnvironmentLacking

if TYPE_CHECKING:
    from kclab.capture.tap import Tap

See: TypeAlias = Callable[[Mapping[str, Any]], "Sighting | Uncaptured | None"]
"""Names one call from its arguments, by name, before it runs."""


def target(module: Any, name: str) -> Any:
    """`module.name`; EnvironmentLacking names what this release lacks."""
    found = getattr(module, name, None)
    if found is None:
        raise EnvironmentLacking(
            f"{module.__name__}.{name} is not in this release, and capture needs to wrap it."
        )
    return found


def is_graph_capture() -> bool:
    """Whether this thread's work goes into a CUDA graph: nothing may be read back then."""
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
    return started and torch.cuda.is_current_stream_capturing()


def watch_calls(tap: Tap, owner: Any, name: str, what: str, see: See, whole: bool = True) -> None:
    """Wrap `owner.name` and capture the calls that `see` names.

    `what` is what a call is counted as while it has no definition. A `whole` call hides the
    operators inside it from other adapters. EnvironmentLacking names a target that is not there.
    """
    tap.wrap(owner, name, lambda method: _watched(tap, method, what, see, whole))


def _watched(
    tap: Tap, method: Callable[..., Any], what: str, see: See, whole: bool
) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(*args, **kwargs)
        step = tap.step()
        if step is None:
            return method(*args, **kwargs)
        if is_graph_capture():
            tap.count(what, "graph capture")
            return method(*args, **kwargs)
        seen = tap.sight(what, lambda: see(bound(signature, args, kwargs)))
        if seen is None:
            return method(*args, **kwargs)
        if whole:
            return tap.around(seen, step, lambda: method(*args, **kwargs))
        pending = tap.begin(seen, step)
        try:
            result = method(*args, **kwargs)
        except BaseException:
            tap.abandon(pending)
            raise
        tap.finish(pending, lambda: seen.outputs(result))
        return result

    return call


def remembered(
    method: Callable[..., Any], place: ContextVar[Any], make: Callable[[Any], Any]
) -> Callable[..., Any]:
    """`method`, with `make(self)` in `place` while it runs."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        token = place.set(make(self))
        try:
            return method(self, *args, **kwargs)
        finally:
            place.reset(token)

    return call


def bound(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by name with defaults; those taken by `**kwargs` are beside the others."""
    named = signature.bind(*args, **kwargs)
    named.apply_defaults()
    found = dict(named.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found.update(found.pop(parameter.name))
    return found
