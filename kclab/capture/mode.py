"""The torch dispatch mode that sees operator calls while a selected step runs.

It sits below autograd and autocast, so it sees the operators that really run, with the dtypes that
they really get, whoever calls them: Python, C++, the TorchScript interpreter, the backward pass.
It never changes what runs: every call goes on to the same kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from kclab.capture.adapters import Handler, OperatorCall, Sighting, Uncaptured
from kclab.capture.context import Step, is_innermost

Result = TypeVar("Result")
DispatchKey = torch._C.DispatchKey

OPAQUE = frozenset({"aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"})
"""Operators whose one kernel calls other operators: watched inside, kernel unchanged."""
TRACING = ("torch._subclasses", "torch.fx", "torch._functorch")
"""Modules of the tensor classes that stand for values while something is traced."""


class Capture(Protocol):
    """What the mode asks of the tap."""

    def sight(self, what: str, ask: Callable[[], Sighting | Uncaptured | None]) -> Sighting | None:
        """Ask an adapter about a call, and keep its errors from the engine."""

    def around(self, sighting: Sighting, step: Step, run: Callable[[], Result]) -> Result:
        """Run a call, captured if it is wanted."""

    def left(self, step: Step) -> None:
        """A thread stops watching a step."""


@dataclass(frozen=True, slots=True)
class Route:
    """What to do with one operator: decided once."""

    handler: Handler | None = None
    inside: str | None = None
    """Run its kernel for this key with the mode on: `composite`, or `backend`."""


PLAIN = Route()


class _Thread(threading.local):
    """What this thread is inside of."""

    handling: StepMode | None = None
    """The mode that is passing a call on: no other one below it may capture the call again."""
    hidden: bool = False
    """Inside a captured call, or in kclab's own work: nothing is seen."""
    own: bool = False
    """In kclab's own frames, whose time is being taken."""
    kernels_ns: int = 0
    """Spent in the program's own kernels, below kclab's frames."""


THREAD = _Thread()


@contextmanager
def hidden() -> Iterator[None]:
    """The tap sees nothing of what this thread does inside: it belongs to one captured call."""
    before, THREAD.hidden = THREAD.hidden, True
    try:
        yield
    finally:
        THREAD.hidden = before


@contextmanager
def out_of_sight() -> Iterator[None]:
    """No mode of anybody, kclab's or the program's, sees the tensor work inside."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


class own_time:  # as the context managers beside it, without the cost of a generator
    """What this thread spends inside is kclab's, and the step's; kernels run elsewhere."""

    __slots__ = ("_started", "_step")

    def __init__(self, step: Step | None):
        self._step = None if THREAD.own else step
        self._started = 0

    def __enter__(self) -> None:
        if self._step is not None:
            THREAD.own = True
            self._started = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        if self._step is not None:
            THREAD.own = False
            self._step.own_ns += perf_counter_ns() - self._started


def run_kernel(run: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Run the program's own call, whose time is not kclab's."""
    own, THREAD.own = THREAD.own, False
    before, started = THREAD.kernels_ns, perf_counter_ns()
    try:
        return run(*args, **kwargs)
    finally:
        # Not added to: calls inside this one are part of it.
        THREAD.kernels_ns = before + perf_counter_ns() - started
        THREAD.own = own


def tap_is_on() -> bool:
    """Whether a step is watched on this thread just now, and not within a captured call."""
    return not THREAD.hidden and any(isinstance(mode, StepMode) for mode in _stack())


def _stack() -> list[Any]:
    length = torch._C._len_torch_dispatch_stack()
    return [torch._C._get_dispatch_stack_at(i) for i in range(length)]


class StepMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Watches one step on one thread, and on autograd's threads that work for it."""

    _left_out = False
    supports_higher_order_operators = True
    """Otherwise torch refuses `flex_attention` and its like while the mode is on."""

    def __init__(self, step: Step, handlers: Mapping[str, Handler], capture: Capture):
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.step = step
        self._handlers = handlers
        self._capture = capture
        self._routes: dict[Any, Route] = {}
        self._thread = 0
        """Where it was pushed; autograd's threads get it too, and have no context of Python's."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled; the operators that it calls are still seen."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler, for seconds, at the first operator; see `leave_out`.
        return False

    @classmethod
    def leave_out(cls, dynamo: Any) -> None:
        """Keep torch's compiler, now that it is loaded, from compiling the mode itself."""
        if not cls._left_out:
            cls._left_out = True
            plain = cls.__torch_dispatch__
            cls.__torch_dispatch__ = dynamo.disable(plain)  # type: ignore[method-assign]  # same

    def __enter__(self) -> StepMode:
        # Not super().__enter__: it keeps process-wide flags that are wrong with several threads.
        self._thread = threading.get_ident()
        _push_mode(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self in _stack():
            self._capture.left(self.step)
            self._remove()

    def _remove(self) -> None:
        """Take this mode off the stack, whatever the program has put above it since."""
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        started, kernels, THREAD.own = perf_counter_ns(), THREAD.kernels_ns, True
        try:
            return self._seen(func, types, args, kwargs or {})
        finally:
            THREAD.own = False
            self.step.own_ns += perf_counter_ns() - started - (THREAD.kernels_ns - kernels)

    def _seen(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if self._passes_on(func, types):
            return run_kernel(func, *args, **kwargs)
        if types and any(_dispatches(kind) for kind in types):
            return NotImplemented  # a wrapper: its own dispatch runs the real operators, seen then
        before, THREAD.handling = THREAD.handling, self
        try:
            return self._dispatch(func, args, kwargs)
        finally:
            THREAD.handling = before

    def _passes_on(self, func: Any, types: Sequence[type]) -> bool:
        return (
            self.step.closed
            or THREAD.hidden
            or THREAD.handling not in (None, self)
            or (threading.get_ident() == self._thread and not is_innermost(self.step))
            or not isinstance(func, OpOverload)
            or any(kind.__module__.startswith(TRACING) for kind in types)
        )

    def _dispatch(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        route = self._routes.get(func)
        if route is None:
            route = self._routes.setdefault(func, self._route(func))
        if route.handler is not None:
            return self._handle(route.handler, func, args, kwargs)
        if route.inside is None or not all(_is_dense(value) for value in args):
            return run_kernel(func, *args, **kwargs)
        key = DispatchKey.CompositeImplicitAutograd
        if route.inside == "backend":
            key = getattr(DispatchKey, _device(args).upper())
        _push_mode(self)
        try:
            return run_kernel(func._op_dk, key, *args, **kwargs)
        finally:
            self._remove()

    def _handle(
        self, handler: Handler, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        call = OperatorCall(func, args, kwargs)
        seen = self._capture.sight(call.name, lambda: handler(call))
        if seen is None:
            return run_kernel(func, *args, **kwargs)
        return self._capture.around(seen, self.step, lambda: func(*args, **kwargs))

    def _route(self, func: OpOverload) -> Route:
        name = func._schema.name
        if name in self._handlers:
            return Route(handler=self._handlers[name])
        if name in OPAQUE:
            return Route(inside="backend")
        if _has_kernel(func, "CompositeImplicitAutograd") and not (
            _has_kernel(func, "CPU") or _has_kernel(func, "CUDA")
        ):
            # Seen whole in inference mode only; autograd takes it apart before the mode sees it.
            return Route(inside="composite")
        return PLAIN


def _has_kernel(func: OpOverload, key: str) -> bool:
    schema = func._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def _dispatches(kind: type) -> bool:
    return getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__


def _is_dense(value: Any) -> bool:
    """Whether a value's kernels are those of plain tensors; a nested one has others, say."""
    if isinstance(value, (list, tuple)):
        return all(_is_dense(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return True
    return value.layout is torch.strided and not (value.is_nested or value.is_quantized)


def _device(args: Sequence[Any]) -> str:
    return next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
