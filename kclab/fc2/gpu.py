"""Evidence about a GPU while it is measured, and holding it for one sweep at a time.

Read through NVML (libnvidia-ml, part of the driver); nothing is set. Where NVML is missing the
readings are None.
"""

from __future__ import annotations

import ctypes as c
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kclab.core.errors import EnvironmentLacking

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""`nvmlClocksEventReason*`."""

SM_CLOCK = 1
CORE_TEMPERATURE = 0
MOST_PROCESSES = 64


class _ProcessInfo(c.Structure):
    _fields_ = (
        ("pid", c.c_uint),
        ("memory", c.c_ulonglong),
        ("gpu_instance", c.c_uint),
        ("compute_instance", c.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU's state at one moment."""

    sm_mhz: int | None
    temperature: int | None
    """Degrees Celsius."""
    power_w: float | None
    throttle: tuple[str, ...]
    """Why the clock is not at its top; empty when nothing holds it."""
    others: tuple[int, ...]
    """Other processes with memory on this GPU."""

    def to_json(self) -> dict[str, Any]:
        """Fields and values."""
        return asdict(self)


class Gpu:
    """One GPU as NVML shows it."""

    def __init__(self, nvml: c.CDLL, device: c.c_void_p):
        self._nvml = nvml
        self._device = device

    def read(self) -> Reading:
        """Clock, temperature, power, throttle reasons and other processes, now."""
        power = self._number("nvmlDeviceGetPowerUsage")
        bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=c.c_ulonglong) or 0
        return Reading(
            sm_mhz=self._number("nvmlDeviceGetClockInfo", SM_CLOCK),
            temperature=self._number("nvmlDeviceGetTemperature", CORE_TEMPERATURE),
            power_w=None if power is None else power / 1000,
            throttle=tuple(name for bit, name in REASONS.items() if bits & bit),
            others=self._others(),
        )

    def glance(self) -> tuple[int | None, int | None, int]:
        """What GLANCE names: few and quick calls, for between two rounds of a measurement."""
        bits = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=c.c_ulonglong) or 0
        return (
            self._number("nvmlDeviceGetClockInfo", SM_CLOCK),
            self._number("nvmlDeviceGetTemperature", CORE_TEMPERATURE),
            bits,
        )

    def _number(self, call: str, *arguments: int, kind: Any = c.c_uint) -> int | None:
        value = kind()
        status = getattr(self._nvml, call)(self._device, *arguments, c.byref(value))
        return int(value.value) if status == 0 else None

    def _others(self) -> tuple[int, ...]:
        count = c.c_uint(MOST_PROCESSES)
        found = (_ProcessInfo * MOST_PROCESSES)()
        call = getattr(self._nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if call is None or call(self._device, c.byref(count), found) != 0:
            return ()
        pids = {int(info.pid) for info in found[: count.value]}
        return tuple(sorted(pids - {os.getpid()}))


GLANCE = ("round", "sm_mhz", "temperature", "throttle_bits")
"""What a round's reading holds; `REASONS` names the bits."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Looks at a GPU while something is measured; sees nothing where there is none to read."""

    gpu: Gpu | None = None

    def read(self) -> dict[str, Any] | None:
        """A whole reading as JSON."""
        return None if self.gpu is None else self.gpu.read().to_json()

    def glance(self) -> tuple[int | None, ...] | None:
        """A round's reading, without the round."""
        return None if self.gpu is None else self.gpu.glance()


NO_GPU = Watcher()


def told_conditions(conditions: Mapping[str, Any]) -> str | None:
    """`1755 to 1980 MHz, 41 to 47 °C, power cap in 12 of 40 rounds`; None for no reading."""
    rounds = conditions.get("rounds", [])
    clocks, heat = ([row[at] for row in rounds if row[at] is not None] for at in (1, 2))
    told = [
        f"{min(values)} to {max(values)} {unit}"
        for values, unit in ((clocks, "MHz"), (heat, "°C"))
        if values
    ]
    for bit, name in REASONS.items():
        if held := sum(bool(row[3] & bit) for row in rounds):
            told.append(f"{name} in {held} of {len(rounds)} rounds")
    return ", ".join(told) or None


@lru_cache(maxsize=8)
def find_gpu(uuid: str) -> Gpu | None:
    """The GPU with this uuid; None where NVML is missing or does not know it."""
    try:
        nvml = c.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    device = c.c_void_p()
    name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
    if nvml.nvmlInit_v2() != 0:
        return None
    if nvml.nvmlDeviceGetHandleByUUID(name, c.byref(device)) != 0:
        return None
    return Gpu(nvml, device)


@contextmanager
def held(device: str) -> Iterator[None]:
    """Hold a device for one measurement at a time on this machine.

    Raises EnvironmentLacking naming the process that holds it.
    """
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    path = folder / f"kclab-{''.join(ch if ch.isalnum() else '-' for ch in device)}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = lock.read().strip() or "another process"
            gpu = ", or choose another GPU with CUDA_VISIBLE_DEVICES"
            other = "" if device.startswith("CPU") else gpu
            raise EnvironmentLacking(
                f"process {holder} is measuring on {device}; two at once would spoil both. "
                f"Wait for it{other}."
            ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield
