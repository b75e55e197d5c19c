"""A Ray cluster for the commands that take `--ray`: joined, or started here and ended again.

One that is started here listens on loopback only, asks for a token that no file keeps, has no
dashboard and reports no usage. Ray's own log lines stay in its folder (`/tmp/ray`).
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.core.ray_address import ADDRESS, AUTO, LOCAL

ANSWER_SECONDS = 10.0
"""Ray itself asks an address for minutes where nobody is."""
OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What keeps a cluster to 127.0.0.1; Ray named it after the systems where it is the default.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def load_ray() -> Any:
    """The package. Raises EnvironmentLacking where it is not installed."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise EnvironmentLacking(
            "--ray needs Ray, which is not installed; pip install 'kclab[ray]'."
        ) from None


@contextmanager
def cluster(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at `address`; leaving it ends one that was started here.

    Raises EnvironmentLacking where there is no Ray or nobody answers.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray  # a caller's own connection stays his
        return
    with _quiet():
        own = address == LOCAL or not _joined(ray, address)
        with _settings() if own else nullcontext():
            try:
                if own:
                    _start(ray)
                yield ray
            finally:
                ray.shutdown()


def _joined(ray: Any, address: str) -> bool:
    """Whether a running cluster took us in; False where `auto` finds none."""
    if (named := ADDRESS.fullmatch(address)) is not None:
        _knock(named["host"].strip("[]"), int(named["port"]))
    try:
        _connect(ray, address=address)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if address == AUTO and isinstance(error, ConnectionError):
            return False
        said = str(error).strip().partition("\n")[0]
        raise EnvironmentLacking(f"no Ray cluster takes us in at {address}: {said}") from error
    return True


def _knock(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EnvironmentLacking(
            f"no Ray cluster answers at {host}:{port} ({error}); `ray status` on its head node"
            " tells the address."
        ) from error


def _start(ray: Any) -> None:
    _connect(ray, address=LOCAL, include_dashboard=False)
    (node,) = ray.nodes()
    if not node["NodeManagerAddress"].startswith("127."):
        raise EnvironmentLacking(
            f"Ray {ray.__version__} started a cluster at {node['NodeManagerAddress']} where kclab"
            " wants loopback only; start one yourself and name it with --ray HOST:PORT."
        )


def _connect(ray: Any, **how: Any) -> None:
    """`ray.init`, which must not keep SIGTERM for itself: a run ends by it as by Ctrl-C."""
    kept = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**how, log_to_driver=False, configure_logging=False)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, kept)


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray says nothing on this terminal: stdout is for data, and its logs stay in its folder."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    # `log_to_driver=False` still prints that a worker died, on stdout, through this function.
    driver: Any = importlib.import_module("ray._private.worker")
    printed = getattr(driver, "print_to_stdstream", None)
    driver.print_to_stdstream = lambda *_words, **_how: None
    try:
        yield
    finally:
        driver.print_to_stdstream = printed
        logger.setLevel(level)


@cache
def _token() -> str:
    """What our own clusters ask for; Ray reads it once in a process."""
    return secrets.token_hex(32)


@contextmanager
def _settings() -> Iterator[None]:
    """What a cluster of our own is started with, in this process and in those it starts."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    several = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    # Ray read its variable when it was imported, maybe before ours was set.
    constants.ENABLE_RAY_CLUSTER = False
    try:
        with _environment(OWN | {"RAY_AUTH_TOKEN": _token()}):
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = several


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables as given, and afterwards as they were."""
    # Ray itself sets the last one where a cluster is to ask for a token.
    before = {name: os.environ.get(name) for name in (*values, "RAY_AUTH_MODE")}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def places(ray: Any, device: str) -> tuple[bool, int]:
    """Whether workers take a GPU each, and how many the cluster has room for.

    Raises BadUsage for a numbered GPU, EnvironmentLacking where `cuda` is asked of CPUs.
    """
    has = ray.cluster_resources()
    gpus = int(has.get("GPU", 0))
    if device.startswith("cuda:"):
        raise BadUsage(f"--device {device} with --ray: Ray hands GPUs out; say cuda.")
    if device == "cuda" and not gpus:
        raise EnvironmentLacking("the Ray cluster has no GPU; choose --device cpu.")
    if gpus and device != "cpu":
        return True, gpus
    return False, max(1, int(has.get("CPU", 1)))
