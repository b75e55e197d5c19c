"""Which model, request and blocks an FC2 capture or gate is about."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kclab.core.errors import BadUsage
from kclab.fc2.problem import Precision
from kclab.h3.model import Denoiser, random_denoiser
from kclab.h3.request import CANONICAL_REQUEST, Request
from kclab.h3.sizes import CANONICAL, Sizes

REQUIRED_BLOCKS = (0, 24, 49)
"""First, middle and last: what every capture and block gate covers."""


@dataclass(frozen=True, slots=True)
class H3Options:
    """One MiniMax-H3 workload; the defaults are the canonical one."""

    sizes: Sizes = CANONICAL
    """Of the random model; a checkpoint has its own."""
    request: Request = CANONICAL_REQUEST
    blocks: tuple[int, ...] = REQUIRED_BLOCKS
    probe: int = 24
    """The block whose boundary candidates are chosen and measured on."""
    precision: Precision = Precision.BF16
    """What FC2 multiplies; the other layers stay as the model has them."""
    fast_accumulation: bool = False
    attention: str | None = None
    """Attention backend, as diffusers names it; None is torch's own."""
    checkpoint: Path | None = None
    """A pruned checkpoint instead of random weights."""
    hash_checkpoint: bool = False
    """Whether to compute the checkpoint's sha256: a minute for the published file."""
    input: Path | None = None
    """Captured activations to start from instead of the request's noise."""

    def __post_init__(self) -> None:
        missing = sorted(set(REQUIRED_BLOCKS) - set(self.blocks))
        if missing:
            raise BadUsage(
                f"blocks {', '.join(map(str, missing))} are missing: captures keep blocks "
                f"{', '.join(map(str, REQUIRED_BLOCKS))}, and may add others."
            )
        if self.probe not in self.blocks:
            raise BadUsage(f"probe block {self.probe} is not among the captured blocks.")

    def check_blocks(self, layers: int) -> None:
        """Raise BadUsage for blocks that the model does not have."""
        beyond = [block for block in self.blocks if not 0 <= block < layers]
        if beyond:
            raise BadUsage(f"block {beyond[0]}: the model has blocks 0 to {layers - 1}.")

    def load(self, device: str, kept: Container[int]) -> tuple[Denoiser, dict[str, Any]]:
        """(the model, where it comes from); blocks outside `kept` are made each time they run."""
        if self.checkpoint is not None:
            from kclab.h3.checkpoint import load_denoiser

            model = load_denoiser(self.checkpoint, device, attention=self.attention, kept=kept)
            origin = self._checkpoint_origin()
        else:
            seed = self.request.seed
            model = random_denoiser(self.sizes, seed, device, attention=self.attention, kept=kept)
            kind = device.split(":")[0]
            origin = {"weights": "random", "seed": seed, "generator": kind}
            origin["sizes"] = asdict(self.sizes)
        self.check_blocks(model.sizes.layers)
        return model, origin

    def _checkpoint_origin(self) -> dict[str, Any]:
        from kclab.h3.checkpoint import file_sha256

        assert self.checkpoint is not None
        sha256 = file_sha256(self.checkpoint) if self.hash_checkpoint else "not calculated"
        return {"weights": "checkpoint", "file": self.checkpoint.name, "sha256": sha256}

    @property
    def source(self) -> str:
        """How boundary rows call it: `h3`, `checkpoint` or `captured`."""
        if self.input is not None:
            return "captured"
        return "h3" if self.checkpoint is None else "checkpoint"
