"""What runs a GEMM: one small protocol, a backend for cuBLASLt and one for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kclab.core.digest import canonical_json, text_sha256
from kclab.core.errors import BadUsage, KclabError
from kclab.fc2.config import AlgorithmConfig
from kclab.fc2.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

    from kclab.fc2.operands import Operands

BACKENDS = ("cublaslt", "cpu")


class Refused(KclabError):
    """The library does not do this; the message is its reason. A result, not a crash."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config that the backend accepts for this problem."""

    config: AlgorithmConfig
    required_workspace: int
    """Bytes."""
    waves: float | None
    """Waves of thread blocks over the device."""
    origin: str
    """`heuristic`, `neighbour`, `space` or `explicit`."""
    budget: int | None = None
    """The workspace budget that the heuristic was asked for, bytes."""
    rank: int | None = None
    """Place in the heuristic's answer, from 0."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What a config really starts on the device."""

    kernel: str
    """Kernel names joined with `|`."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    """(0, 0, 0) without clusters."""
    shared_bytes: int
    kernels: int
    fold: int
    """Equal for configs that start the very same work; good in this process only."""

    @property
    def sha256(self) -> str:
        """Identity of kernel and geometry across processes."""
        shape = [self.kernel, self.grid, self.block, self.cluster, self.shared_bytes, self.kernels]
        return text_sha256(canonical_json(shape))

    @property
    def stream_k(self) -> bool:
        """Whether it is a Stream-K kernel: no attribute says so, its name does."""
        return "stream_k" in self.kernel or "streamk" in self.kernel.lower()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A config that can be run, with what it launches."""

    algorithm: Any
    """What `run` takes."""
    launch: Launch


@dataclass(frozen=True, slots=True)
class Check:
    """A library's answer about one config."""

    valid: bool
    required_workspace: int | None
    """Bytes; None where it was refused."""
    waves: float | None
    reason: str | None
    """Why it was refused."""


class Gemm(Protocol):
    """One problem with its operands, its output and one workspace, ready to run."""

    problem: Problem
    operands: Operands
    workspace_bytes: int
    output: Tensor
    """[M padded, N] bfloat16; overwritten by each run."""

    def enumerate(self, budget: int, wanted: int) -> list[Candidate]:
        """The library's own ranking within a workspace budget. Raises Refused."""
        ...

    def neighbours(self, config: AlgorithmConfig) -> list[Candidate]:
        """Valid configs that differ from this one in one knob (split-K with its reduction)."""
        ...

    def space(self) -> Iterator[list[Candidate]]:
        """Every valid config, in portions, the plainest first."""
        ...

    def reductions(self, algorithm_id: int) -> tuple[int, ...]:
        """The reduction schemes that an algorithm's capabilities list for split-K; () for none."""
        ...

    def check(self, config: AlgorithmConfig) -> Check:
        """Whether a config is valid here, and if not, why."""
        ...

    def prepare(self, config: AlgorithmConfig) -> Any:
        """What `run` and `fingerprint` take. Raises Refused."""
        ...

    def fingerprint(self, prepared: Any) -> Launch:
        """What running it would start; nothing runs. Raises Refused."""
        ...

    def launches(self, configs: Sequence[AlgorithmConfig]) -> list[Prepared | Refused]:
        """`prepare` and `fingerprint` of many configs at once; refusals in their places."""
        ...

    def run(self, prepared: Any, operands: Operands | None = None) -> None:
        """Enqueue one run into `output`, with other operands of the same problem if given.

        Raises Refused.
        """
        ...

    def synchronize(self) -> None:
        """Wait for everything enqueued."""
        ...

    def close(self) -> None:
        """Free what the library holds."""
        ...


class Clock(Protocol):
    """Times one launch at a time."""

    policy: str
    """`cold` (the cache was overwritten before) or `hot`."""
    settles: float
    """Seconds that the device may take under load until its clocks stand still."""

    def sample(self, launch: Callable[[], None]) -> float:
        """Milliseconds that a launch takes on the device."""
        ...

    def series(
        self, gemm: Any, prepared: Sequence[Any], order: Sequence[int]
    ) -> list[float | None]:
        """Milliseconds of running `prepared[i]` for each i of `order`, one after the other.

        None where a run was refused. For screening thousands: the cache is overwritten no more than
        that takes, so compare a series' samples with each other only. `gemm` is the backend's own.
        """
        ...


class Backend(Protocol):
    """A way to run GEMMs."""

    name: str
    device: str
    """torch's name of where operands live."""

    def facts(self) -> dict[str, Any]:
        """Device and library versions that results depend on: `gpu`, `capability`, …"""
        ...

    def require(self, problem: Problem) -> None:
        """Raise EnvironmentLacking where the device cannot do the problem's dtype at all."""
        ...

    def open(self, problem: Problem, operands: Operands, workspace_bytes: int) -> Gemm:
        """Make a problem ready to run."""
        ...

    def launch_of(self, call: Callable[[], Any]) -> Launch | None:
        """What somebody else's call launches; None where that cannot be read."""
        ...

    def clock(self, *, cold: bool) -> Clock:
        """A clock for this device."""
        ...


def load_backend(name: str) -> Backend:
    """The backend of this name. Raises BadUsage or EnvironmentLacking."""
    if name == "cublaslt":
        from kclab.fc2.backends.cublaslt import CublasLt

        return CublasLt.load()
    if name == "cpu":
        from kclab.fc2.backends.cpu import Cpu

        return Cpu()
    raise BadUsage(f"backend {name!r}: known are {', '.join(BACKENDS)}.")


def default_backend() -> str:
    """`cublaslt` where torch sees a GPU, else `cpu`."""
    import torch

    return "cublaslt" if torch.cuda.is_available() else "cpu"
