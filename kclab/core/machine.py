"""What this machine has, told as findings: Python, torch, GPUs, the packages that kclab works with.

Packages are looked up, not imported (SGLang alone takes many seconds), but for torch.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kclab.core.environment import driver_version, package_version
from kclab.core.errors import KclabError
from kclab.core.units import format_bytes


class State(StrEnum):
    """How one thing is."""

    OK = "ok"
    ABSENT = "absent"
    """Not here; what needs it does not work, the rest does."""
    WARNING = "warning"
    """Here, and may give trouble."""
    BROKEN = "broken"
    """Installed or stored, and does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `kclab doctor`."""

    area: str
    """`machine`, `packages`, `store` or `trust`."""
    name: str
    state: State
    found: str
    advice: str | None = None
    """What to do about it."""


def machine_findings() -> Iterable[Finding]:
    """Python, SQLite, torch and every GPU; loads torch."""
    yield Finding("machine", "python", State.OK, f"{platform.python_version()}, {_system()}")
    yield _sqlite()
    yield from _torch()
    yield _compiler()


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _sqlite() -> Finding:
    found = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < (3, 37):
        advice = "kclab needs 3.37 or newer for STRICT tables; use a newer Python"
        return Finding("machine", "sqlite", State.BROKEN, found, advice)
    return Finding("machine", "sqlite", State.OK, found)


def _torch() -> Iterable[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        # OSError: a shared library of the CUDA build that does not load.
        advice = "reinstall torch; nothing but looking at rows works without it"
        yield Finding("machine", "torch", State.BROKEN, f"{error}", advice)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("machine", "torch", State.OK, f"{torch.__version__}, {build}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield _gpu(index)
    else:
        yield _no_gpu(torch.version.cuda)


def _gpu(index: int) -> Finding:
    import torch

    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    memory = format_bytes(properties.total_memory)
    found = f"{properties.name}, capability {capability}, {memory}, driver {driver_version()}"
    try:
        torch.ones(1, device=f"cuda:{index}").item()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        advice = "this torch build does not run on it; install one for its architecture"
        return Finding("machine", f"gpu {index}", State.BROKEN, f"{found}: {reason}", advice)
    return Finding("machine", f"gpu {index}", State.OK, found)


def _no_gpu(cuda: str | None) -> Finding:
    driver = driver_version()
    if driver is None:
        advice = "capture and replay run on the CPU, FC2 searches with its cpu backend"
        return Finding("machine", "gpu", State.ABSENT, "no NVIDIA GPU", advice)
    if cuda is None:
        advice = "install torch's CUDA build to use the GPU"
        return Finding("machine", "gpu", State.WARNING, f"driver {driver}, unused", advice)
    advice = "see `nvidia-smi`, and CUDA_VISIBLE_DEVICES"
    found = f"driver {driver}, but torch finds no GPU"
    return Finding("machine", "gpu", State.BROKEN, found, advice)


def _compiler() -> Finding:
    if path := shutil.which("g++"):
        return Finding("machine", "g++", State.OK, path)
    advice = "install g++ to build the cuBLASLt library; the rest works without"
    return Finding("machine", "g++", State.ABSENT, "not found", advice)


PACKAGES = (
    ("safetensors", "safetensors", "reinstall kclab: it is one of its requirements"),
    ("diffusers", "diffusers", "pip install 'kclab[demo]' for the demo and the qwen-image adapter"),
    (
        "sglang",
        "sglang",
        "pip install 'kclab[sglang]', in an environment of its own (it pins torch)",
    ),
    ("comfy-kitchen", "comfy_kitchen", "pip install comfy-kitchen for the NVFP4 and FP8 baselines"),
    ("textual", "textual", "pip install 'kclab[tui]' for the terminal app"),
    ("jinja2", "jinja2", "pip install 'kclab[report]' for HTML reports"),
    ("ray", "ray", "pip install 'kclab[ray]' for replay and sweeps on a cluster"),
)
"""(distribution, module, what to do without it)."""


def package_findings() -> Iterable[Finding]:
    """Which of the packages that kclab works with are installed, and where one cannot be used."""
    for distribution, module, advice in PACKAGES:
        version = package_version(distribution)
        if version is None:
            yield Finding("packages", distribution, State.ABSENT, "not installed", advice)
        elif importlib.util.find_spec(module) is None:
            found = f"{version}, but its module {module} cannot be found"
            advice = f"pip install --force-reinstall {distribution}"
            yield Finding("packages", distribution, State.BROKEN, found, advice)
        else:
            yield Finding("packages", distribution, State.OK, version)


def free_space_finding(folder: Path, enough: int = 1 << 30) -> Finding:
    """Free bytes of the disk that holds `folder` (or its nearest existing parent)."""
    existing = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < enough:
        found, advice = f"{format_bytes(free)} free", "make room before capturing"
        return Finding("store", "disk", State.WARNING, found, advice)
    return Finding("store", "disk", State.OK, f"{format_bytes(free)} free")


def problem(area: str, name: str, error: KclabError, state: State) -> Finding:
    """A finding out of one of kclab's own errors."""
    return Finding(area, name, state, str(error))
