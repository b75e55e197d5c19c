"""cuBLASLt through kclab's C library: every algorithm that it offers for a problem."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.environment import driver_version
from kclab.core.errors import EnvironmentLacking
from kclab.fc2 import build, lt
from kclab.fc2.backends import Candidate, Check, Launch, Prepared, Refused
from kclab.fc2.backends.device_clock import FLUSH_BYTES, DeviceClock
from kclab.fc2.backends.space import Knobs, neighbour_rows, other_rows, plain_rows
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.lt_structs import AlgorithmStruct, Buffers, Launches, LaunchStruct
from kclab.fc2.problem import NVFP4_CAPABILITY, Precision, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.fc2.operands import Operands

FAKE_DEVICE = "kclab fake GPU"
"""The device of the fake libraries, whose memory is the host's."""


class CublasLt:
    """The library, the GPU it runs on, and torch's memory there."""

    name = "cublaslt"

    def __init__(self, library: lt.Library, built: build.Built):
        self.library = library
        self.built = built
        self.gpu = _read_device(library)
        self.fake = self.gpu.name == FAKE_DEVICE
        self.device = "cpu" if self.fake else "cuda"
        if not self.fake and not torch.cuda.is_available():
            raise EnvironmentLacking(
                f"torch {torch.__version__} cannot use the {self.gpu.name}: install its CUDA "
                "build, or take --backend cpu."
            )

    @classmethod
    def load(cls) -> CublasLt:
        """Build the library if this is its first use, and load it after torch's own cuBLAS."""
        built = build.build()
        return cls(_load(built), built)

    def facts(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu.name,
            "gpu_uuid": self.gpu.uuid,
            "capability": "{}.{}".format(*self.gpu.capability),
            "multiprocessors": self.gpu.multiprocessors,
            "driver": driver_version() or str(self.gpu.driver),
            "cublaslt": str(self.gpu.cublaslt),
            "cublas_header": str(self.gpu.header),
        }

    def require(self, problem: Problem) -> None:
        if problem.precision is Precision.NVFP4 and self.gpu.capability < NVFP4_CAPABILITY:
            raise EnvironmentLacking(
                f"nvfp4 needs compute capability 10.0 (Blackwell) or newer; {self.gpu.name} has "
                "{}.{}: cuBLASLt names FP4 algorithms here but refuses every one.".format(
                    *self.gpu.capability
                )
            )

    def open(self, problem: Problem, operands: Operands, workspace_bytes: int) -> LtGemm:
        return LtGemm(self, problem, operands.to(self.device), workspace_bytes)

    def launch_of(self, call: Callable[[], Any]) -> Launch | None:
        """What any call on torch's stream launches, read from a captured CUDA graph.

        None over the fakes, and where the call cannot be captured.
        """
        if self.fake:
            return None
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no type for it
        try:
            with torch.cuda.graph(graph, stream=stream):
                call()
            return _launch(self.library.read_graph(graph.raw_cuda_graph()))
        except (RuntimeError, lt.LtError):
            return None

    def clock(self, *, cold: bool) -> DeviceClock:
        return DeviceClock(self, FLUSH_BYTES if cold and not self.fake else 4096 if cold else 0)

    def stream(self) -> int:
        """torch's current stream, as an integer; the fakes have only the default one."""
        return 0 if self.fake else int(torch.cuda.current_stream().cuda_stream)


@lru_cache(maxsize=4)
def _load_path(path: str) -> lt.Library:
    from pathlib import Path

    return lt.Library(Path(path))


def _load(built: build.Built) -> lt.Library:
    return _load_path(str(built.path))


def _read_device(library: lt.Library) -> lt.Device:
    ordinal = torch.cuda.current_device() if torch.cuda.is_available() else 0
    try:
        return library.device(ordinal)
    except lt.LtError as error:
        raise EnvironmentLacking(
            f"no CUDA device here ({error}); the cpu backend works without: --backend cpu."
        ) from error


class LtGemm:
    """One problem on cuBLASLt."""

    def __init__(
        self, backend: CublasLt, problem: Problem, operands: Operands, workspace_bytes: int
    ):
        self.problem = problem
        self.operands = operands
        self.workspace_bytes = workspace_bytes
        self._backend = backend
        self._library = backend.library
        device = backend.device
        shape = (problem.m_padded, problem.n)
        self.output = torch.empty(shape, dtype=torch.bfloat16, device=device)
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        self._beta = torch.zeros(1, dtype=torch.float32, device=device)
        self._buffers = self._buffers_for(operands)
        self._handle = backend.library.open(problem)
        self._handle.bind(self._buffers)
        self._knobs: list[Knobs] | None = None
        self._folds: dict[int, Launch] = {}

    def _buffers_for(self, operands: Operands) -> Buffers:
        def address(tensor: Tensor | None) -> int:
            return 0 if tensor is None else tensor.data_ptr()

        return Buffers(
            activation=address(operands.activation),
            weight=address(operands.weight),
            output=address(self.output),
            activation_scale=address(operands.activation_scale),
            weight_scale=address(operands.weight_scale),
            alpha=address(operands.alpha),
            beta=address(self._beta),
            workspace=address(self._workspace),
            workspace_bytes=self.workspace_bytes,
            stream=self._backend.stream(),
        )

    def enumerate(self, budget: int, wanted: int) -> list[Candidate]:
        try:
            found = self._handle.heuristic(budget, wanted)
        except lt.LtError as error:
            raise Refused(str(error)) from error
        return [
            Candidate(a.config.value(), a.workspace_bytes, a.waves, "heuristic", budget, rank)
            for rank, a in enumerate(found)
            if a.status == 0
        ]

    def knobs(self) -> list[Knobs]:
        """What each algorithm id can be set to; ids whose capabilities are refused are left out."""
        if self._knobs is None:
            self._knobs = []
            for algorithm in self._handle.algorithm_ids():
                try:
                    self._knobs.append(Knobs.of(self._handle.capabilities(algorithm)))
                except lt.LtError:
                    continue  # named for these types, but not there: as FP4 below Blackwell
        return self._knobs

    def neighbours(self, config: AlgorithmConfig) -> list[Candidate]:
        knobs = next((k for k in self.knobs() if k.algorithm_id == config.algorithm_id), None)
        if knobs is None:
            return []
        return self._valid(neighbour_rows(knobs, config), "neighbour")

    def space(self) -> Iterator[list[Candidate]]:
        plain: dict[int, list[Tensor]] = {}
        for knobs in self.knobs():
            for rows in plain_rows(knobs):
                accepted, candidates = self._accepted(rows, "space")
                plain.setdefault(knobs.algorithm_id, []).append(accepted)
                yield candidates
        for knobs in self.knobs():
            for rows in other_rows(knobs, torch.cat(plain[knobs.algorithm_id])):
                yield self._valid(rows, "space")

    def _valid(self, rows: Tensor, origin: str) -> list[Candidate]:
        return self._accepted(rows, origin)[1]

    def _accepted(self, rows: Tensor, origin: str) -> tuple[Tensor, list[Candidate]]:
        """The rows that the library takes, and those of them that fit the workspace."""
        status, workspace, waves = self._handle.check(rows)
        taken = status == 0
        fits = taken & (workspace <= self.workspace_bytes)
        numbers = rows[fits].tolist(), workspace[fits].tolist(), waves[fits].tolist()
        candidates = [
            Candidate(AlgorithmConfig(*row), need, wave, origin)
            for row, need, wave in zip(*numbers, strict=True)
        ]
        return rows[taken], candidates

    def reductions(self, algorithm_id: int) -> tuple[int, ...]:
        own = [knobs for knobs in self.knobs() if knobs.algorithm_id == algorithm_id]
        schemes = [scheme for knobs in own for count, scheme in knobs.splits if count > 1]
        return tuple(dict.fromkeys(schemes))

    def check(self, config: AlgorithmConfig) -> Check:
        status, workspace, waves = self._handle.check(lt.as_rows([config]))
        if int(status[0]) == 0:
            return Check(True, int(workspace[0]), float(waves[0]), None)
        reason = self._handle.refusal(config)
        return Check(False, None, None, reason)

    def prepare(self, config: AlgorithmConfig) -> AlgorithmStruct:
        try:
            return self._handle.prepare(config)
        except lt.LtError as error:
            raise Refused(self._handle.refusal(config) or str(error)) from error

    def fingerprint(self, prepared: AlgorithmStruct) -> Launch:
        try:
            found = self._handle.fingerprint(self._buffers, prepared)
        except lt.LtError as error:
            raise Refused(str(error)) from error
        return _launch(found)

    def launches(self, configs: Sequence[AlgorithmConfig]) -> list[Prepared | Refused]:
        found = self._handle.launches(self.buffers(), configs)
        return [
            self._prepared(found, place) if found.status[place] == 0 else self._no(config)
            for place, config in enumerate(configs)
        ]

    def _prepared(self, found: Launches, place: int) -> Prepared:
        struct = found.launches[place]
        launch = self._folds.get(struct.fingerprint)
        if launch is None:
            launch = self._folds[struct.fingerprint] = _launch(struct)
        return Prepared(found.algorithms[place], launch)

    def _no(self, config: AlgorithmConfig) -> Refused:
        """Why a config cannot be prepared or would not launch: asked again, alone."""
        try:
            self.fingerprint(self.prepare(config))
        except Refused as refusal:
            return refusal
        return Refused("refused once and accepted when asked again")

    @property
    def handle(self) -> int:
        """The C library's handle, for its timer."""
        return self._handle.address

    def buffers(self) -> Buffers:
        """The operands' addresses, on torch's stream of now."""
        self._buffers.stream = self._backend.stream()
        return self._buffers

    def run(self, prepared: AlgorithmStruct, operands: Operands | None = None) -> None:
        buffers = self._buffers if operands is None else self._buffers_for(operands)
        buffers.stream = self._backend.stream()
        status = self._library.try_run(self._handle.address, buffers, prepared)
        if status != 0:
            raise Refused(f"cublasLtMatmul: {self._library.status_name(status)}")

    def synchronize(self) -> None:
        if not self._backend.fake:
            torch.cuda.synchronize()

    def close(self) -> None:
        self._handle.close()


def _launch(found: LaunchStruct) -> Launch:
    return Launch(
        kernel=found.names.decode(errors="replace"),
        grid=_triple(found.grid),
        block=_triple(found.block),
        cluster=_triple(found.cluster),
        shared_bytes=found.shared_bytes,
        kernels=found.kernels,
        fold=found.fingerprint,
    )


def _triple(values: ctypes.Array[ctypes.c_uint32]) -> tuple[int, int, int]:
    return int(values[0]), int(values[1]), int(values[2])
