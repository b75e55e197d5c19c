"""Distances to a float64 truth, in units in the last place of the dtype that was rounded to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS: dict[str, tuple[int, int]] = {
    "float32": (24, -126),
    "complex64": (24, -126),
    "float16": (11, -14),
    "bfloat16": (8, -126),
    "float8_e4m3fn": (4, -6),
    "float8_e4m3fnuz": (4, -7),
    "float8_e5m2": (3, -14),
    "float8_e5m2fnuz": (3, -15),
    "float4_e2m1fn_x2": (2, 0),
    "float8_e8m0fnu": (1, -127),
}
"""(significand bits with the hidden one, exponent of the smallest normal number) by dtype."""


def ulp_at(magnitude: Tensor, dtype: str) -> Tensor:
    """The gap between neighbours of `dtype` at each magnitude, float64; subnormals have one gap."""
    precision, smallest = FORMATS[dtype]
    _, exponent = torch.frexp(magnitude)  # magnitude = m 2^exponent with m in [1/2, 1)
    exponent = torch.where(magnitude > 0, exponent - 1, smallest).clamp_min(smallest)
    return torch.ldexp(torch.ones_like(magnitude), exponent - (precision - 1))


@dataclass(slots=True)
class Distance:
    """How far one side is from the truth, added up over chunks."""

    elements: int = 0
    ulp_squares: float = 0.0
    load_squares: float = 0.0
    """Of error over typical rounding (see `Yardstick`)."""
    max_abs: float = 0.0
    max_ulp: float = 0.0
    max_load: float = 0.0
    worst: int | None = None
    """Flat index of the element that is most ulps away."""
    beyond: int = 0
    """Elements farther away than rounding can take them."""
    intolerable: int = 0
    """Elements outside the output's tolerance around the truth."""
    broken: int = 0
    """Elements that are not finite where the truth is, or the other way round."""

    @property
    def rms_ulp(self) -> float:
        """Root mean square distance in ulp."""
        return math.sqrt(self.ulp_squares / self.elements) if self.elements else 0.0

    @property
    def rms_load(self) -> float:
        """Root mean square of error over typical rounding."""
        return math.sqrt(self.load_squares / self.elements) if self.elements else 0.0

    @property
    def trimmed_rms_load(self) -> float:
        """The same without the worst element, so that one outlier cannot hide itself."""
        rest = max(0.0, self.load_squares - self.max_load**2)
        return math.sqrt(rest / (self.elements - 1)) if self.elements > 1 else 0.0

    def add(self, start: int, error: Tensor, chunk: Yardstick, broken: Tensor) -> None:
        """Add a chunk's |errors|; elements in `broken` have no distance."""
        error = torch.where(broken, 0.0, error)
        in_ulp = error / chunk.ulp
        load = error / chunk.typical
        facts = torch.stack(
            (
                in_ulp.square().sum(),
                load.square().sum(),
                error.amax(),
                in_ulp.amax(),
                (error > chunk.bound).sum().double(),
                (error > chunk.tolerable).sum().double(),
                broken.sum().double(),
                load.amax(),
            )
        ).tolist()
        self.elements += error.numel()
        self.ulp_squares += facts[0]
        self.load_squares += facts[1]
        self.max_abs = max(self.max_abs, facts[2])
        if facts[6] and not self.broken:
            self.worst = start + int(broken.to(torch.uint8).argmax())
        elif not self.broken and (self.worst is None or facts[3] > self.max_ulp):
            self.worst = start + int(in_ulp.argmax())
        self.max_ulp = max(self.max_ulp, facts[3])
        self.beyond += int(facts[4])
        self.intolerable += int(facts[5])
        self.broken += int(facts[6])
        self.max_load = max(self.max_load, facts[7])


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a chunk's errors are measured with, all in the output's unit, float64."""

    ulp: Tensor
    """One unit in the last place."""
    typical: Tensor
    """What rounding does to be expected; errors of this size or less say nothing."""
    bound: Tensor
    """What rounding can do at most; infinite where no theory says."""
    tolerable: Tensor
    """The output's own tolerance around the truth; infinite where it has none."""
