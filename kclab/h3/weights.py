"""Random weights that depend on a seed and each parameter's name alone.

So block 24 has the same bytes whether or not the other 49 were made, and in any order. The same
seed gives the same bytes on devices of one kind only, since each kind has its own generator.
"""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from kclab.h3.parts import Ends, make_block, make_ends, materialise
from kclab.h3.sizes import Sizes

SPREAD = 0.02
"""Standard deviation of biases, and of norm weights around 1."""


def random_block(sizes: Sizes, index: int, seed: int, device: str) -> nn.Module:
    """Block `index` with its random weights."""
    block = make_block(sizes, curve=False)
    materialise(block, device)
    fill(block, f"blocks.{index}", seed)
    return block


def random_ends(sizes: Sizes, seed: int, device: str) -> Ends:
    """What surrounds the blocks, with random weights."""
    ends = make_ends(sizes, curve=False)
    materialise(ends, device)
    fill(ends, "ends", seed)
    return ends


@torch.no_grad()
def fill(module: nn.Module, prefix: str, seed: int) -> None:
    """Matrices keep the scale of their input; vectors are near 1 (norms) or near 0 (biases)."""
    for name, parameter in module.named_parameters():
        generator = torch.Generator(parameter.device)
        generator.manual_seed(name_seed(seed, f"{prefix}.{name}"))
        if parameter.ndim > 1:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        else:
            middle = 0.0 if name.endswith("bias") else 1.0
            parameter.normal_(middle, SPREAD, generator=generator)


def name_seed(seed: int, name: str) -> int:
    """A 63-bit seed of its own for each name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
