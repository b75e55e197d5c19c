"""Workers on a Ray cluster: started with a class of kclab's, greeted, compared with this machine.

Ray sends the class below along with the call, so a node where kclab is missing can still say so.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kclab import __version__
from kclab.core.errors import EnvironmentLacking

CLOSE_SECONDS = 3.0
"""For workers to tidy up before they are killed."""
TIDY = "tidy"
"""Calls beside those that work: a worker is not to wait for a sweep's end before it tidies up."""
Greeting = Mapping[str, Any]
"""What a worker says first: `host`, `pid`, `kclab`, `torch`, `problem`, and what else it tells."""
FALSE_STARTS = 3
"""Workers that may be lost one after the other before any is ready."""


@dataclass(frozen=True, slots=True)
class Staff:
    """How workers of one kind are started."""

    ray: Any
    gpu: bool
    """Each takes a GPU; else a core."""
    target: str
    """`package.module:Class`; its `greet()` is asked first."""
    how: tuple[Any, ...] = ()
    """What the class is made with."""

    def hire(self) -> Any:
        """A new worker, which Ray starts where there is room.

        Ray is to retry nothing by itself: what was lost, and where, is told apart here.
        """
        worker = self.ray.remote(
            num_cpus=1,
            num_gpus=int(self.gpu),
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={TIDY: 1},
            scheduling_strategy="SPREAD",
        )(worker_class())
        return worker.remote(self.target, self.how)

    def dismiss(self, workers: Sequence[Any]) -> None:
        """Have workers remove what they keep on disk, and end them."""
        # They may be gone, and so may the cluster.
        with suppress(self.ray.exceptions.RayError, ValueError):
            tidy = [worker.close.options(concurrency_group=TIDY) for worker in workers]
            closing = [close.remote() for close in tidy]
            if closing:
                self.ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for worker in workers:
            with suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.kill(worker)

    @property
    def losses(self) -> tuple[type[Exception], ...]:
        """What Ray raises where a worker or its node is gone."""
        errors = self.ray.exceptions
        return (
            errors.RayActorError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        )


def own_facts() -> dict[str, Any]:
    """This process, as a greeting tells it."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "kclab": __version__,
        "torch": importlib.metadata.version("torch"),
        "problem": None,
    }


def name_of(greeting: Greeting | None) -> str:
    """Where a worker runs: `node host, process 123`."""
    found = greeting or {}
    return f"node {found.get('host', '?')}, process {found.get('pid', '?')}"


def check(greeting: Greeting) -> None:
    """Raise EnvironmentLacking where what a worker says would not be what this machine says."""
    problem = greeting["problem"] or _mismatch(greeting)
    if problem:
        raise EnvironmentLacking(f"Ray {name_of(greeting)}: {problem}.")


def _mismatch(greeting: Greeting) -> str | None:
    ours = own_facts()
    for package in ("kclab", "torch"):
        # A build's suffix (+cpu, +cu130) may differ: nodes have other devices.
        here, there = (str(facts[package]).partition("+")[0] for facts in (ours, greeting))
        if here != there:
            return f"it has {package} {there}, here it is {here}; install that there"
    return None


def why_lost(error: Exception) -> str:
    """`: the node ran low on memory` where Ray says so, else nothing."""
    return ": the node ran low on memory" if "low on memory" in str(error) else ""


def never_ready(error: Exception) -> EnvironmentLacking:
    """For workers that are lost before they greet."""
    said = str(error).strip().rpartition("\n")[2]
    return EnvironmentLacking(f"Ray workers end before they are ready: {said}")


def worker_class() -> type:
    """The class of every worker: a door to the one that `target` names."""

    class Worker:
        """Imports inside its methods only; see the module's docstring."""

        def __init__(self, target: str, how: Any) -> None:
            self.target, self.how = target, how

        def greet(self) -> dict[str, Any]:
            import importlib
            import os
            import socket
            import sys

            module, _, name = self.target.partition(":")
            try:
                found = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                problem = f"no kclab that could work ({error}); install this one for"
                problem = f"{problem} {sys.executable}"
                return {"host": socket.gethostname(), "pid": os.getpid(), "problem": problem}
            self.inner = found(*self.how)
            return dict(self.inner.greet())

        def work(self, *given: Any, blobs: Any) -> dict[str, Any]:
            import ray

            files = {
                path: ray.get(blob) if isinstance(blob, ray.ObjectRef) else blob
                for path, blob in blobs.items()
            }
            return dict(self.inner.work(*given, files))

        def close(self) -> None:
            if hasattr(self, "inner"):
                self.inner.close()

    return Worker
