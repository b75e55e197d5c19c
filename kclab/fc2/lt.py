"""The C library over cuBLASLt, from Python: `csrc/kclab_lt.h` field for field, typed."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kclab.core.errors import EnvironmentLacking, KclabError
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.lt_structs import (
    STRUCTS,
    AlgorithmStruct,
    Buffers,
    CapabilitiesStruct,
    ConfigStruct,
    DeviceStruct,
    Launches,
    LaunchStruct,
    ProblemStruct,
)
from kclab.fc2.problem import Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

ABI = 2
DTYPE_CODES = {Precision.BF16: 0, Precision.FP8: 1, Precision.NVFP4: 2}
REFUSAL_BYTES = 4096
MOST_IDS = 512
ALIGNMENT = 256
"""Bytes; what torch's allocator gives, and what the heuristic assumes when nobody says."""


class LtError(KclabError):
    """The library refused; `status` is cuBLASLt's number, or kclab's own below zero."""

    def __init__(self, status: int, name: str, text: str):
        super().__init__(text or name)
        self.status = status
        self.name = name


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU and the libraries that will run on it."""

    name: str
    uuid: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    cublaslt: int
    """As 130100."""
    header: int
    """The cuBLAS headers that the library was compiled with."""
    driver: int
    """The newest CUDA that the driver serves, as 13000."""
    runtime: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an algorithm id says that it can be set to. Clusters and inner shapes are not said."""

    algorithm_id: int
    tiles: tuple[int, ...]
    stages: tuple[int, ...]
    split_k: bool
    reduction_mask: int
    """Bits: 1 in place, 2 in fp32, 4 in the output's type; 0 means no public scheme."""
    swizzle: bool
    custom_max: int


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "device_read": (c.c_int, c.c_void_p),
    "create": (c.c_void_p, c.c_void_p),
    "bind": (c.c_void_p, c.c_void_p),
    "heuristic": (c.c_void_p, c.c_uint64, c.c_int, c.c_void_p, c.c_void_p),
    "algorithm_ids": (c.c_void_p, c.c_int, c.c_void_p, c.c_void_p),
    "read_capabilities": (c.c_void_p, c.c_int, c.c_void_p),
    "prepare": (c.c_void_p, c.c_void_p, c.c_void_p),
    "check": (c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p, c.c_void_p),
    "refusal": (c.c_void_p, c.c_void_p, c.c_char_p, c.c_size_t),
    "run": (c.c_void_p, c.c_void_p, c.c_void_p),
    "fingerprint": (c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p),
    "launches": (c.c_void_p, c.c_void_p, c.c_void_p, c.c_int64, *[c.c_void_p] * 3),
    "read_graph": (c.c_uint64, c.c_void_p),
    "timer_create": (c.c_void_p,),
    "timer_start": (c.c_void_p, c.c_uint64, c.c_uint64, c.c_uint64),
    "timer_stop": (c.c_void_p, c.c_uint64, c.c_void_p),
    "timer_series": (
        *[c.c_void_p] * 5,
        *(c.c_int64, c.c_uint64, c.c_uint64, c.c_void_p, c.c_void_p),
    ),
}


class Library:
    """The loaded library. Calls raise LtError with the status and what the library said."""

    def __init__(self, path: Path):
        try:
            self._dll = c.CDLL(str(path))
        except OSError as error:
            raise EnvironmentLacking(f"{path} cannot be loaded: {error}.") from error
        self._dll.kclab_lt_version.restype = c.c_uint64
        for name in ("kclab_lt_error", "kclab_lt_status_name"):
            getattr(self._dll, name).restype = c.c_char_p
        for name in ("kclab_lt_destroy", "kclab_lt_timer_destroy"):
            getattr(self._dll, name).argtypes = (c.c_void_p,)
        for name, arguments in _SIGNATURES.items():
            getattr(self._dll, f"kclab_lt_{name}").argtypes = arguments
        self._require_same_layout(path)

    def _require_same_layout(self, path: Path) -> None:
        sizes = [self._dll.kclab_lt_sizeof(i) for i in range(len(STRUCTS))]
        if self._dll.kclab_lt_abi() != ABI or sizes != [c.sizeof(s) for s in STRUCTS]:
            raise EnvironmentLacking(f"{path} was built from other sources; run kclab fc2 compile.")

    def call(self, name: str, *arguments: Any) -> None:
        """Call `kclab_lt_<name>`; a status other than 0 is raised."""
        status = getattr(self._dll, f"kclab_lt_{name}")(*arguments)
        if status != 0:
            text = self._dll.kclab_lt_error().decode(errors="replace")
            raise LtError(status, self.status_name(status), text)

    def try_run(self, handle: int, buffers: Buffers, algorithm: AlgorithmStruct) -> int:
        """`kclab_lt_run` with its status returned: the call in the timed path."""
        return int(self._dll.kclab_lt_run(handle, c.byref(buffers), c.byref(algorithm)))

    def status_name(self, status: int) -> str:
        """cuBLAS's name of a status."""
        return str(self._dll.kclab_lt_status_name(status).decode())

    def version(self) -> int:
        """The loaded cuBLASLt, as 130100."""
        return int(self._dll.kclab_lt_version())

    def device(self, ordinal: int = 0) -> Device:
        """The GPU with this number. Raises LtError where there is none."""
        out = DeviceStruct()
        self.call("device_read", ordinal, c.byref(out))
        return Device(
            name=out.name.decode(),
            uuid=out.uuid.decode(),
            capability=(out.major, out.minor),
            multiprocessors=out.multiprocessors,
            l2_bytes=out.l2_bytes,
            cublaslt=out.cublaslt,
            header=out.header,
            driver=out.driver,
            runtime=out.runtime,
        )

    def read_graph(self, graph: int) -> LaunchStruct:
        """What a captured CUDA graph (its `cudaGraph_t` as an integer) launches."""
        out = LaunchStruct()
        self.call("read_graph", graph, c.byref(out))
        return out

    def open(self, problem: Problem, alignment: int = ALIGNMENT) -> Handle:
        """A handle for a problem; close it."""
        struct = ProblemStruct(
            dtype=DTYPE_CODES[problem.precision],
            fast_accumulation=int(problem.fast_accumulation),
            device_scalars=int(problem.precision is Precision.NVFP4),
            alignment=alignment,
            m=problem.m_padded,
            n=problem.n,
            k=problem.k,
        )
        address = c.c_void_p()
        self.call("create", c.byref(struct), c.byref(address))
        return Handle(self, int(address.value or 0))

    def destroy(self, address: int) -> None:
        """Free a handle."""
        self._dll.kclab_lt_destroy(address)

    def destroy_timer(self, address: int) -> None:
        """Free a timer."""
        self._dll.kclab_lt_timer_destroy(address)


class Handle:
    """cuBLASLt's view of one problem."""

    def __init__(self, library: Library, address: int):
        self.library = library
        self.address = address

    def close(self) -> None:
        """Free it; harmless twice."""
        if self.address:
            self.library.destroy(self.address)
            self.address = 0

    def bind(self, buffers: Buffers) -> None:
        """Tell the scale addresses: cuBLASLt refuses NVFP4 without them."""
        self.library.call("bind", self.address, c.byref(buffers))

    def heuristic(self, workspace_bytes: int, wanted: int) -> list[AlgorithmStruct]:
        """cuBLASLt's own ranking within a workspace budget."""
        out = (AlgorithmStruct * wanted)()
        found = c.c_int()
        self.library.call("heuristic", self.address, workspace_bytes, wanted, out, c.byref(found))
        return [AlgorithmStruct.from_buffer_copy(out[i]) for i in range(found.value)]

    def algorithm_ids(self) -> list[int]:
        """Ids that the library names for these types; naming is not supporting."""
        ids = (c.c_int * MOST_IDS)()
        found = c.c_int()
        self.library.call("algorithm_ids", self.address, MOST_IDS, ids, c.byref(found))
        return list(ids[: found.value])

    def capabilities(self, algorithm_id: int) -> Capabilities:
        """What an algorithm can be set to."""
        out = CapabilitiesStruct()
        self.library.call("read_capabilities", self.address, algorithm_id, c.byref(out))
        return Capabilities(
            algorithm_id,
            tuple(out.tiles[: out.tile_count]),
            tuple(out.stages[: out.stage_count]),
            bool(out.split_k),
            out.reduction_mask,
            bool(out.swizzle),
            out.custom_max,
        )

    def prepare(self, config: AlgorithmConfig) -> AlgorithmStruct:
        """Check a config and make it runnable."""
        out = AlgorithmStruct()
        self.library.call("prepare", self.address, c.byref(ConfigStruct.of(config)), c.byref(out))
        return out

    def check(self, configs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(status int32, workspace bytes int64, waves float32) of int32 [n, 9] configs."""
        import torch

        count = configs.shape[0]
        rows = configs.to(torch.int32).contiguous()
        status = torch.empty(count, dtype=torch.int32)
        workspace = torch.empty(count, dtype=torch.int64)
        waves = torch.empty(count, dtype=torch.float32)
        pointers = [tensor.data_ptr() for tensor in (status, workspace, waves)]
        self.library.call("check", self.address, rows.data_ptr(), count, *pointers)
        return status, workspace, waves

    def refusal(self, config: AlgorithmConfig) -> str:
        """Status and log text of a config that is refused; "" for one that is accepted."""
        text = c.create_string_buffer(REFUSAL_BYTES)
        try:
            self.library.call(
                "refusal", self.address, c.byref(ConfigStruct.of(config)), text, REFUSAL_BYTES
            )
        except LtError as error:
            said = text.value.decode(errors="replace")
            return f"{error.name}: {said}" if said else error.name
        return ""

    def fingerprint(self, buffers: Buffers, algorithm: AlgorithmStruct) -> LaunchStruct:
        """What running it would launch."""
        out = LaunchStruct()
        self.library.call(
            "fingerprint", self.address, c.byref(buffers), c.byref(algorithm), c.byref(out)
        )
        return out

    def launches(self, buffers: Buffers, configs: Sequence[AlgorithmConfig]) -> Launches:
        """`prepare` and `fingerprint` of many configs in one call."""
        count = len(configs)
        rows = (ConfigStruct * count)(*(ConfigStruct.of(config) for config in configs))
        found = Launches(
            (AlgorithmStruct * count)(), (LaunchStruct * count)(), (c.c_int32 * count)()
        )
        self.library.call(
            "launches",
            self.address,
            c.byref(buffers),
            rows,
            count,
            found.algorithms,
            found.launches,
            found.status,
        )
        return found


def as_rows(configs: Sequence[AlgorithmConfig]) -> Tensor:
    """int32 [n, 9] for `Handle.check`."""
    import torch

    return torch.tensor([config.key for config in configs], dtype=torch.int32).reshape(-1, 9)
