"""Requests, steps, roots and threads: what a captured call belongs to, and what is left alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from kclab import capture
from kclab.capture import context

from .conftest import MemoryRecorder, Tapped, current_tap

X = torch.randn(3, 4)


class Net(nn.Module):
    """A root for tests: one linear layer in a block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)  # type: ignore[no-any-return]


def where(recorder: MemoryRecorder) -> list[tuple[str, int, str | None]]:
    assert recorder.errors == []
    return [(c.call.request_id, c.call.step, c.call.module_path) for c in recorder.captures]


def test_program_without_a_root_is_step_0_of_one_request(tapped: Tapped) -> None:
    recorder = tapped()
    Net()(X)
    Net()(X)
    assert where(recorder) == [("program", 0, "block.0")]


@pytest.mark.parametrize("root", ["Net", f"{__name__}.Net", f"{__name__.split('.')[0]}.Net"])
def test_each_call_of_the_root_is_a_step(tapped: Tapped, root: str) -> None:
    recorder = tapped(root=root)
    net = Net()
    torch.randn(3, 4) @ torch.randn(4, 5)  # outside any step
    net(X)
    net.forward(X)
    net(X)
    assert where(recorder) == [("program", step, "block.0") for step in (0, 1, 2)]


def test_class_defined_later_becomes_a_root(tapped: Tapped) -> None:
    recorder = tapped(root="Later")
    later = type("Later", (Net,), {"__module__": __name__})
    later()(X)
    assert where(recorder) == [("program", 0, "block.0")]


def test_only_selected_steps_are_captured(tapped: Tapped) -> None:
    recorder = tapped(root="Net", steps=(1, 3))
    net = Net()
    for _ in range(5):
        net(X)
    assert [step for _, step, _ in where(recorder)] == [1, 3]


def test_steps_are_counted_per_request(tapped: Tapped) -> None:
    recorder = tapped(root="Net")
    net = Net()
    for name in ("a", "b"):
        with capture.request(name, {"prompt": name}):
            net(X), net(X)
    assert [(r, s) for r, s, _ in where(recorder)] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert recorder.captures[0].call.request == {"prompt": "a"}


def test_interleaved_requests_of_asyncio_tasks_stay_apart(tapped: Tapped) -> None:
    recorder = tapped(root="Net")
    net = Net()

    async def serve(name: str) -> None:
        with capture.request(name):
            for _ in range(2):
                net(X)
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(serve("a"), serve("b"))

    asyncio.run(both())
    assert sorted((r, s) for r, s, _ in where(recorder)) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]


def test_task_outside_a_request_is_not_taken_for_another_tasks(tapped: Tapped) -> None:
    recorder = tapped()
    net = Net()

    async def serve() -> None:
        with capture.request("r"):
            await asyncio.sleep(0.01)
            net(X)

    async def both() -> None:
        task = asyncio.create_task(serve())
        await asyncio.sleep(0)
        nn.Linear(4, 7, bias=False)(X)
        await task

    asyncio.run(both())
    assert [(c.name, c.call.request_id) for c in recorder.captures] == [
        ("dense_gemm_fp32_nt_n7_k4", "program"),
        ("dense_gemm_fp32_nt_n5_k4", "r"),
    ]


def test_code_can_name_its_steps(tapped: Tapped) -> None:
    recorder = tapped()
    net = Net()
    with capture.request("r"):
        for _ in range(2):
            with capture.step():
                net(X)
        net(X)  # steps are named: what is between them is in none
    assert [(r, s) for r, s, _ in where(recorder)] == [("r", 0), ("r", 1)]


def test_request_without_steps_is_one_step(tapped: Tapped) -> None:
    recorder = tapped()
    with capture.request("r"):
        Net()(X)
    Net()(X)
    assert [(r, s) for r, s, _ in where(recorder)] == [("r", 0), ("program", 0)]


def test_names_are_harmless_where_nothing_captures() -> None:
    with capture.request("r"), capture.step():
        Net()(X)
    assert context.current_step() is None


def test_call_outside_a_request_is_counted(tapped: Tapped) -> None:
    recorder = tapped(root="Net")
    context.set_request_source(lambda: None)
    Net()(X)
    assert recorder.captures == []
    assert recorder.counts == {("Net", "no request"): 1}


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_pool(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def in_executor(work: Callable[[], object]) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, work)

    asyncio.run(main())


def in_asyncio_thread(work: Callable[[], object]) -> None:
    asyncio.run(asyncio.to_thread(work))


@pytest.mark.parametrize("elsewhere", [in_thread, in_pool, in_executor, in_asyncio_thread])
def test_work_handed_to_a_thread_belongs_to_the_step(
    tapped: Tapped, elsewhere: Callable[[Callable[[], object]], None]
) -> None:
    recorder = tapped()
    net = Net()
    with capture.request("r"):
        elsewhere(lambda: net(X))
    assert where(recorder) == [("r", 0, "block.0")]


def test_root_called_in_a_thread_belongs_to_the_request(tapped: Tapped) -> None:
    recorder = tapped(root="Net")
    net = Net()
    with capture.request("r"):
        in_pool(lambda: net(X))
    assert where(recorder) == [("r", 0, "block.0")]


def test_thread_that_outlives_its_step_captures_no_more_of_it(tapped: Tapped) -> None:
    recorder = tapped(root="Net")
    begin, done = threading.Event(), threading.Event()
    net = Net()

    def late() -> None:
        begin.wait(10)
        nn.Linear(4, 7)(X)
        net(X)
        done.set()

    with capture.request("r"):
        net.block.append(_Spawn(late))
        net(X)
        del net.block[-1]
    begin.set()
    assert done.wait(10)
    assert [(r, s) for r, s, _ in where(recorder)] == [("r", 0), ("r", 1)]
    assert not any("n7" in name for name in recorder.names())


class _Spawn(nn.Module):
    def __init__(self, target: Callable[[], None]) -> None:
        super().__init__()
        self.target = target

    def forward(self, x: Tensor) -> Tensor:
        threading.Thread(target=self.target).start()
        return x


def test_threads_share_one_step_and_none_is_left_watched(tapped: Tapped) -> None:
    recorder = tapped(per="site")
    nets = [nn.Linear(4, n, bias=False) for n in range(5, 13)]
    with capture.request("r"), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda net: net(X), nets * 4))
    assert sorted(recorder.names()) == sorted(f"dense_gemm_fp32_nt_n{n}_k4" for n in range(5, 13))


def test_root_that_is_never_called_is_told(tapped: Tapped) -> None:
    recorder = tapped(root="package.Nope")
    current_tap().disarm()
    assert recorder.counts == {("Nope", "never called in this process"): 1}


def test_process_of_a_served_engine_that_computes_nothing_is_no_gap(tapped: Tapped) -> None:
    recorder = tapped(root="package.Nope", served=True)
    current_tap().disarm()
    assert not recorder.counts


def test_root_whose_calls_were_none_of_the_steps_is_told(tapped: Tapped) -> None:
    recorder = tapped(root="Net", steps=(7, 9))
    net = Net()
    for _ in range(3):
        net(X)
    current_tap().disarm()
    assert recorder.counts == {("Net", "no step selected"): 3}


def test_disarming_gives_every_function_back(tapped: Tapped) -> None:
    before = (Net.forward, Net.__call__, threading.Thread.start, ThreadPoolExecutor.submit)
    had = "__call__" in vars(Net), nn.Module.__dict__.get("__init_subclass__")
    recorder = tapped(root="Net")
    assert Net.forward is not before[0]
    current_tap().disarm()
    assert (Net.forward, Net.__call__, threading.Thread.start, ThreadPoolExecutor.submit) == before
    assert ("__call__" in vars(Net), nn.Module.__dict__.get("__init_subclass__")) == had
    Net()(X)
    assert recorder.captures == []


def test_unselected_step_has_no_mode_on_the_stack(tapped: Tapped) -> None:
    tapped(root="Peek", steps=(1,))
    depths = []

    def forward(self: nn.Module) -> None:
        depths.append(torch._C._len_torch_dispatch_stack())

    peek = type("Peek", (nn.Module,), {"forward": forward})()
    peek(), peek(), peek()
    assert depths == [0, 1, 0]
