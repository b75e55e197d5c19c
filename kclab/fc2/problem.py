"""The GEMM in question: output[M, N] (bf16) = alpha * activation[M, K] . weight[N, K]^T."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from kclab.core.errors import BadUsage


class Precision(StrEnum):
    """What both operands are made of; the output is bfloat16."""

    BF16 = "bf16"
    FP8 = "fp8_e4m3"
    """One fp32 scale a tensor; products may be summed below fp32 (fast accumulation)."""
    NVFP4 = "nvfp4"
    """E2M1, a UE4M3 scale for 16 values along K, one fp32 scale a tensor."""

    @property
    def family(self) -> str:
        """How definitions call it: `fc2_<family>_n5376_k14336`."""
        return "fp8" if self is Precision.FP8 else self.value


ROW_MULTIPLE = {Precision.BF16: 1, Precision.FP8: 16, Precision.NVFP4: 16}
"""M is padded to this many rows (comfy-kitchen's TensorCoreNVFP4Layout; vLLM for FP8)."""

MULTIPLES = {
    Precision.BF16: (1, 1),
    Precision.FP8: (16, 16),
    Precision.NVFP4: (8, 32),
}
"""What N and K must be multiples of: 16 bytes a row for FP8, comfy-kitchen's checks for NVFP4."""

NVFP4_CAPABILITY = (10, 0)
"""The first compute capability with FP4 tensor cores (Blackwell)."""

WORKSPACE_BUDGETS = tuple(n << 20 for n in (0, 4, 8, 16, 32, 64))
"""Workspace sizes that the heuristic is asked for, bytes."""

GEMM, PRODUCER_GEMM = "gemm", "producer+gemm"
"""What is timed: the product alone, or the activation and quantisation before it as well."""

BASELINE_WORKSPACE = 32 << 20
"""What torch and comfy-kitchen give cuBLASLt on Hopper and later, bytes."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is at least `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Problem:
    """Shape and numerics of one GEMM."""

    precision: Precision
    m: int
    """Logical rows: what parity and TFLOP/s are about."""
    n: int
    k: int
    fast_accumulation: bool = False
    """FP8 only; it is part of the boundary, since it changes bytes and candidates."""

    def __post_init__(self) -> None:
        n_multiple, k_multiple = MULTIPLES[self.precision]
        if min(self.m, self.n, self.k) < 1:
            raise BadUsage(f"shape {self.shape}: M, N and K must be positive.")
        if self.n % n_multiple or self.k % k_multiple:
            raise BadUsage(
                f"shape {self.shape}: {self.precision} needs N to be a multiple of {n_multiple} "
                f"and K of {k_multiple}."
            )
        if self.fast_accumulation and self.precision is not Precision.FP8:
            raise BadUsage(f"fast accumulation exists for fp8_e4m3 only, not for {self.precision}.")

    @property
    def m_padded(self) -> int:
        """Rows of the tensors that the library sees."""
        return round_up(self.m, ROW_MULTIPLE[self.precision])

    @property
    def shape(self) -> str:
        """`MxNxK`, logical."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """Multiplications and additions over logical rows."""
        return 2 * self.m * self.n * self.k

    @property
    def numerics(self) -> str:
        """`bf16`, `fp8_e4m3+fast`, …: what else besides the shape makes the problem."""
        return self.precision + ("+fast" if self.fast_accumulation else "")

    def tflops(self, milliseconds: float) -> float:
        """TFLOP/s of logical work done in a time."""
        return self.flops / (milliseconds * 1e9)


def parse_shape(text: str) -> tuple[int, int, int]:
    """(M, N, K) of `37810x5376x14336`. Raises BadUsage."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text.strip().lower())
    if match is None:
        raise BadUsage(f"shape {text!r}: write it MxNxK, as 37810x5376x14336.")
    m, n, k = (int(part) for part in match.groups())
    return m, n, k
