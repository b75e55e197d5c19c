"""Compiled, scripted and traced code: what the tap sees of it, and that it leaves it as it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .conftest import Tapped
from .test_tap_gemm import only

X = torch.randn(6, 4)
# torch's own compiler warns of its own parts.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Compiled(nn.Module):
    """A root that is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


class Attending(nn.Module):
    """Calls the function that the tap wraps."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.view(1, 2, 3, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


class Backend:
    """A compiler that runs graphs as they are, and counts."""

    def __init__(self) -> None:
        self.compiled = self.ran = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph.forward(*args)

        return run


@pytest.fixture
def backend() -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def with_function(net: nn.Module, backend: Backend) -> Callable[[Tensor], Tensor]:
    return torch.compile(net, backend=backend, fullgraph=True)


def in_place(net: nn.Module, backend: Backend) -> Callable[[Tensor], Tensor]:
    net.compile(backend=backend, fullgraph=True)
    return net


@pytest.mark.parametrize("compiled", [with_function, in_place])
@pytest.mark.parametrize("root", [None, "Compiled"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_compiled_model_stays_compiled_and_is_captured(
    tapped: Tapped,
    backend: Backend,
    compiled: Callable[..., Callable[[Tensor], Tensor]],
    root: str | None,
    warm: bool,
) -> None:
    net = Compiled()
    model = compiled(net, backend)
    with torch.inference_mode():
        untouched = model(X) if warm else net.linear(X).relu()
        recorder = tapped(root=root)
        result = model(X)
    assert torch.equal(result, untouched)
    assert backend.ran == 1 + warm
    captured = only(recorder)
    assert captured.call.step == 0
    torch.testing.assert_close(captured.inputs["A"], X, rtol=0, atol=0)
    torch.testing.assert_close(captured.outputs["C"].relu(), result, rtol=0, atol=0)


def test_steps_of_a_compiled_root_do_not_recompile(tapped: Tapped, backend: Backend) -> None:
    recorder = tapped(root="Compiled", steps=(2,))
    model = torch.compile(Compiled(), backend=backend, fullgraph=True)
    with torch.inference_mode():
        for _ in range(5):
            model(X)
    assert (backend.compiled, backend.ran) == (1, 5)
    assert only(recorder).call.step == 2


def test_compiled_attention_is_seen_below_the_compiler(tapped: Tapped) -> None:
    recorder = tapped()
    model = torch.compile(Attending(), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        result = model(torch.randn(6, 4))
    (captured,) = [c for c in recorder.captures if c.name.startswith("sdpa")]
    torch.testing.assert_close(captured.outputs["O"], result, rtol=0, atol=0)


def test_watching_a_step_does_not_load_the_compiler(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from kclab.capture.adapters import load_adapters
from kclab.capture.plan import CapturePlan
from kclab.capture.recorder import Recorder
from kclab.capture.tap import Tap
from kclab.core.catalog import Catalog
import torch
folder = Path(sys.argv[1])
plan = CapturePlan(folder / "kclab.db", 1, "run", folder, define_missing=True)
Tap(plan, Recorder(plan), load_adapters(["torch"]), Catalog({})).arm()
torch.nn.Linear(4, 5)(torch.randn(6, 4))
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program, tmp_path]).returncode == 0


def test_use_of_the_compiler_is_counted(tapped: Tapped, backend: Backend) -> None:
    recorder = tapped(root="Compiled")
    torch.compile(Compiled(), backend=backend)(X)
    assert recorder.counts["torch.compile", "operators that it fuses are not seen"] == 1


@pytest.mark.parametrize("root", [None, "Compiled"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_scripted_module_is_captured(tapped: Tapped, root: str | None, mode: type) -> None:
    recorder = tapped(root=root)
    scripted = torch.jit.script(Compiled().eval())
    with mode():
        for _ in range(3):
            result = scripted(X)
    captured = recorder.captures[0]
    assert recorder.errors == []
    assert {c.call.step for c in recorder.captures} == ({0} if root is None else {0, 1, 2})
    torch.testing.assert_close(captured.outputs["C"].relu(), result, rtol=0, atol=0)


def test_traced_module_is_captured(tapped: Tapped) -> None:
    recorder = tapped()
    net = Compiled().eval()
    with torch.no_grad():
        traced = torch.jit.trace(net, X)
        result = traced(X)
    torch.testing.assert_close(only(recorder).outputs["C"].relu(), result, rtol=0, atol=0)


def test_flex_attention_runs_while_a_step_is_watched(tapped: Tapped) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 128, 16)
    untouched = flex_attention(q, q, q)
    recorder = tapped()
    torch.testing.assert_close(flex_attention(q, q, q), untouched, rtol=0, atol=0)
    assert recorder.errors == []


def test_fake_tensors_are_not_captured(tapped: Tapped) -> None:
    from torch._subclasses import FakeTensorMode

    recorder = tapped()
    with FakeTensorMode():
        torch.randn(6, 4) @ torch.randn(4, 5)
    assert recorder.captures == [] and recorder.errors == []


def test_vmapped_products_are_captured_as_they_run(tapped: Tapped) -> None:
    recorder = tapped()
    weight = torch.randn(5, 4)
    result = torch.vmap(lambda x: torch.nn.functional.linear(x, weight))(X.view(2, 3, 4))
    torch.testing.assert_close(only(recorder).outputs["C"], result.view(6, 5), rtol=0, atol=0)
