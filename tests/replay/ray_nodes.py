"""A Ray cluster of two nodes on this machine, for tests: on loopback, ended with its processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kclab.core.ray_cluster import _quiet, _settings, load_ray


@dataclass(frozen=True, slots=True)
class Nodes:
    """A running cluster, which this process has not joined."""

    address: str
    raylets: Sequence[int]
    """Process ids."""
    folder: Path
    """Where its processes run: `/proc/self/cwd` is this folder to them."""

    def workers(self) -> list[int]:
        """Process ids of the Ray workers that judge."""
        found = [psutil.Process(pid).children(recursive=True) for pid in self.raylets]
        return [p.pid for some in found for p in some if _title(p).startswith("ray::Worker")]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def two_nodes(folder: Path) -> Iterator[Nodes]:
    """Two nodes of one core each."""
    load_ray()
    from ray.cluster_utils import Cluster

    before = Path.cwd()
    with _settings(), _quiet():
        cluster: Any = Cluster()
        try:
            os.chdir(folder)
            for _ in range(2):
                cluster.add_node(num_cpus=1, include_dashboard=False)
            os.chdir(before)
            nodes = [cluster.head_node, *cluster.worker_nodes]
            raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
            yield Nodes(cluster.address, raylets, folder)
        finally:
            os.chdir(before)
            cluster.shutdown()


def marked(mark: str) -> list[psutil.Process]:
    """Living processes that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and mark in process.environ().values():
                found.append(process)
    return found


def reachable(processes: Sequence[psutil.Process]) -> set[str]:
    """Addresses at which processes listen, but for this machine's own loopback."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            sockets = process.net_connections(kind="inet")
            found |= {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert found, "none of them listens at all"
    return {ip for ip in found if not ip.removeprefix("::ffff:").startswith("127.")}
