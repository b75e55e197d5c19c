"""A toy engine: each mode makes one linear call whose true input is [[1, 2, 3, 4]].

`python toy_engine.py MODE…`: each mode is a request of its own. W is arange(12) as [3, 4], so the
true output is [[20, 60, 100]].
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import kclab.capture


def model() -> nn.Linear:
    made = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.arange(12.0).reshape(3, 4))
    return made


def activations(mode: str) -> torch.Tensor:
    if mode == "view":
        buffer = torch.zeros(1 << 24)
        buffer[8:12] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return buffer[8:12].reshape(1, 4)
    return torch.tensor([[1.0, 2.0, 3.0, 4.0]])


def call(mode: str) -> None:
    made, x = model(), activations(mode)
    with torch.inference_mode():
        if mode == "forward":
            out = made.forward(x)
        elif mode == "compile":
            out = torch.compile(made, backend="eager")(x)
        else:
            out = made(x)
        if mode == "inplace":
            x.zero_()
            out.zero_()


def in_children(method: str, count: int) -> None:
    context = multiprocessing.get_context(method)
    children = [context.Process(target=call, args=("plain",)) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def run(mode: str) -> None:
    if mode == "thread":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call, mode).result()
    elif mode == "spawn":
        in_children("spawn", 1)
    elif mode == "twoproc":
        in_children("spawn", 2)
    elif mode == "fork":
        in_children("fork", 1)
    elif mode == "many":
        for _ in range(200):
            with kclab.capture.request(f"many {time.monotonic_ns()}"):
                call("plain")
    elif mode == "sleep":
        print("sleeping", flush=True)
        time.sleep(60)
    elif mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "exit3":
        sys.exit(3)
    else:
        with kclab.capture.request(mode, {"prompt": mode}):
            call(mode)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(name)
    print("done")
