"""The structs of `csrc/kclab_lt.h`, field for field."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import ClassVar

from kclab.fc2.config import AlgorithmConfig


class ProblemStruct(c.Structure):
    _fields_: ClassVar = [
        ("dtype", c.c_int32),
        ("fast_accumulation", c.c_int32),
        ("device_scalars", c.c_int32),
        ("alignment", c.c_int32),
        ("m", c.c_int64),
        ("n", c.c_int64),
        ("k", c.c_int64),
    ]


class Buffers(c.Structure):
    """Addresses of one call; see `kclab_lt_buffers`."""

    _fields_: ClassVar = [
        (name, c.c_uint64)
        for name in (
            "activation",
            "weight",
            "output",
            "activation_scale",
            "weight_scale",
            "alpha",
            "beta",
            "workspace",
            "workspace_bytes",
            "stream",
        )
    ]


class ConfigStruct(c.Structure):
    _fields_: ClassVar = [
        (name, c.c_int32)
        for name in (
            "algorithm",
            "tile",
            "stages",
            "split_k",
            "reduction",
            "swizzle",
            "custom",
            "inner",
            "cluster",
        )
    ]

    @classmethod
    def of(cls, config: AlgorithmConfig) -> ConfigStruct:
        """The struct of a config; both list the nine numbers in one order."""
        return cls(*config.key)

    def value(self) -> AlgorithmConfig:
        """The config of this struct."""
        return AlgorithmConfig(*(int(getattr(self, field[0])) for field in self._fields_))


class AlgorithmStruct(c.Structure):
    """A config that was checked and can be run; see `kclab_lt_algorithm`."""

    _fields_: ClassVar = [
        ("config", ConfigStruct),
        ("status", c.c_int32),
        ("waves", c.c_float),
        ("workspace_bytes", c.c_uint64),
        ("opaque", c.c_uint64 * 8),
    ]


class CapabilitiesStruct(c.Structure):
    _fields_: ClassVar = [
        ("split_k", c.c_int32),
        ("swizzle", c.c_int32),
        ("custom_max", c.c_int32),
        ("tile_count", c.c_int32),
        ("stage_count", c.c_int32),
        ("reduction_mask", c.c_uint32),
        ("alignment_a", c.c_uint32),
        ("alignment_b", c.c_uint32),
        ("alignment_c", c.c_uint32),
        ("alignment_d", c.c_uint32),
        ("numerical", c.c_uint64),
        ("tiles", c.c_uint32 * 1024),
        ("stages", c.c_uint32 * 128),
    ]


class LaunchStruct(c.Structure):
    _fields_: ClassVar = [
        ("nodes", c.c_int32),
        ("kernels", c.c_int32),
        ("grid", c.c_uint32 * 3),
        ("block", c.c_uint32 * 3),
        ("cluster", c.c_uint32 * 3),
        ("shared_bytes", c.c_uint32),
        ("fingerprint", c.c_uint64),
        ("names", c.c_char * 1024),
    ]


class DeviceStruct(c.Structure):
    _fields_: ClassVar = [
        ("cublaslt", c.c_uint64),
        ("header", c.c_int32),
        ("driver", c.c_int32),
        ("runtime", c.c_int32),
        ("major", c.c_int32),
        ("minor", c.c_int32),
        ("multiprocessors", c.c_int32),
        ("l2_bytes", c.c_int32),
        ("name", c.c_char * 256),
        ("uuid", c.c_char * 40),
    ]


@dataclass(frozen=True, slots=True)
class Launches:
    """What many configs launch; what is filled of the first two is said by `status` (0)."""

    algorithms: c.Array[AlgorithmStruct]
    launches: c.Array[LaunchStruct]
    status: c.Array[c.c_int32]


STRUCTS = (
    ProblemStruct,
    Buffers,
    ConfigStruct,
    AlgorithmStruct,
    CapabilitiesStruct,
    LaunchStruct,
    DeviceStruct,
)
"""In the order of `kclab_lt_sizeof`."""
