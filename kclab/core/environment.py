"""What machine and software this is: the stable facts that a comparison stays within."""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any


def package_version(name: str) -> str | None:
    """The installed version of a distribution, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def environment_facts() -> dict[str, Any]:
    """Stable facts of this process's machine and software.

    GPU facts are included only when torch is already loaded: a run that never touches torch does
    not pay for loading it.
    """
    facts: dict[str, Any] = {
        "os": f"{platform.system()} {platform.release().split('-')[0]}",
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "comfy_kitchen": package_version("comfy-kitchen"),
        "kclab": package_version("kclab"),
    }
    if "torch" in sys.modules:
        facts.update(_gpu_facts())
    return {key: value for key, value in facts.items() if value is not None}


def _gpu_facts() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "gpu_memory": properties.total_memory,
    }


@lru_cache(maxsize=1)
def driver_version() -> str | None:
    """The NVIDIA kernel driver's version, None without one."""
    path = Path("/proc/driver/nvidia/version")
    if not path.is_file():
        return None
    words = path.read_text(encoding="utf-8").split()
    return next((w for w in words if w.count(".") >= 1 and w[0].isdigit()), None)


@lru_cache(maxsize=1)
def _cpu_name() -> str | None:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return platform.processor() or None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """Names this boot of the machine and this pid namespace; None where the kernel does not tell.

    Two containers of one machine cannot see each other's processes, so their ids differ.
    """
    path = Path("/proc/sys/kernel/random/boot_id")
    if not path.is_file():
        return None
    boot = path.read_text(encoding="utf-8").strip()
    namespace = Path("/proc/self/ns/pid")
    return f"{boot} {namespace.readlink()}" if namespace.is_symlink() else boot


def process_started_us(pid: int) -> int | None:
    """When a process began; None when there is no such process (or only a zombie).

    Microseconds since the boot on Linux, since the epoch elsewhere: good for telling a recycled
    pid within one boot. The boot's own wall-clock time is left out, since setting the clock
    moves it.
    """
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return _process_started_portably(pid)
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) * 1_000_000 // os.sysconf("SC_CLK_TCK")


def _process_started_portably(pid: int) -> int | None:
    if Path("/proc/self/stat").exists():
        return None
    import psutil

    try:
        return int(psutil.Process(pid).create_time() * 1e6)
    except psutil.NoSuchProcess:
        return None
