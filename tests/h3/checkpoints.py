"""Writes tiny checkpoints in the format of minimax_h3_fl2va_pruned_nvfp4.safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from kclab.fc2 import nvfp4

HIDDEN, FFN, HEADS, HEAD_DIM, TEXT, CHANNELS, TIME, FREQS = 64, 128, 3, 32, 48, 8, 8, 4

Tensors = dict[str, torch.Tensor]

LINEARS = {
    "attn.qkv_proj": (3 * HEADS * HEAD_DIM, HIDDEN),
    "attn.out_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.fc1": (2 * FFN, HIDDEN),
    "mlp.fc2": (HIDDEN, FFN),
}


def everything(_stem: str) -> bool:
    """Pack every linear, as the published `_all` files do."""
    return True


def nothing(_stem: str) -> bool:
    """Pack none: a pruned bfloat16 file."""
    return False


def checkpoint_tensors(
    layers: int = 50, packed: Callable[[str], bool] = everything, seed: int = 1
) -> Tensors:
    """All tensors of a tiny pruned model; `packed` says which linears are in NVFP4."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float = 1.0, middle: float = 0.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * spread + middle

    found: Tensors = {}
    prefixes = [f"blocks.{i}." for i in range(layers)]
    prefixes += [f"token_refiner.blocks.{i}." for i in range(2)]
    for prefix in prefixes:
        for name in ("norm1", "norm2"):
            found[f"{prefix}{name}.weight"] = normal(HIDDEN, spread=0.02, middle=1.0).bfloat16()
        for name in ("q_norm", "k_norm"):
            vector = normal(HEAD_DIM, spread=0.02, middle=1.0).bfloat16()
            found[f"{prefix}attn.{name}.weight"] = vector
        for name, (n, k) in LINEARS.items():
            weight = normal(n, k, spread=k**-0.5).bfloat16()
            found |= stored_linear(prefix + name, weight, packed(prefix + name))
        if prefix.startswith("blocks."):
            found[f"{prefix}adaln_proj.linear.weight"] = normal(18 * HIDDEN, TIME).bfloat16()
            found[f"{prefix}adaln_proj.linear.bias"] = normal(18 * HIDDEN, spread=0.1).bfloat16()
    return found | around(normal)


def around(normal: Callable[..., torch.Tensor]) -> Tensors:
    """What is outside the blocks: projections and heads in float32, the rest in bfloat16."""
    return {
        "video_patch_proj.weight": normal(HIDDEN, 4 * CHANNELS, spread=0.2),
        "video_patch_proj.bias": normal(HIDDEN, spread=0.1),
        "audio_patch_proj.weight": normal(HIDDEN, CHANNELS, spread=0.3),
        "audio_patch_proj.bias": normal(HIDDEN, spread=0.1),
        "condition_proj.weight": normal(HIDDEN, TEXT, spread=0.15).bfloat16(),
        "condition_proj.bias": normal(HIDDEN, spread=0.1).bfloat16(),
        "token_refiner.final_norm.weight": normal(HIDDEN, spread=0.02, middle=1.0).bfloat16(),
        "final_layer.norm.weight": normal(HIDDEN, spread=0.02, middle=1.0).bfloat16(),
        "final_layer.adaln_proj.linear.weight": normal(2 * HIDDEN, TIME, spread=0.3).bfloat16(),
        "final_layer.adaln_proj.linear.bias": normal(2 * HIDDEN, spread=0.1).bfloat16(),
        "final_layer.video_out.weight": normal(4 * CHANNELS, HIDDEN, spread=0.1),
        "final_layer.video_out.bias": normal(4 * CHANNELS, spread=0.1),
        "final_layer.audio_out.weight": normal(CHANNELS, HIDDEN, spread=0.1),
        "final_layer.audio_out.bias": normal(CHANNELS, spread=0.1),
        "adaln_t_table": normal(1025, TIME, spread=0.3),
        "rope.inv_freq": 10000.0 ** (-torch.arange(FREQS) / FREQS),
    }


def stored_linear(stem: str, weight: torch.Tensor, packed: bool) -> Tensors:
    """A linear layer's tensors."""
    if not packed:
        return {f"{stem}.weight": weight}
    # Not the scale that quantising again would choose: a copy of it would show.
    made = nvfp4.quantise(weight, weight.abs().amax().float() / 2000)
    quant = json.dumps({"format": "nvfp4"}).encode()
    return {
        f"{stem}.weight": made.codes,
        f"{stem}.weight_scale": made.scales,
        f"{stem}.weight_scale_2": made.tensor_scale,
        f"{stem}.comfy_quant": torch.tensor(list(quant), dtype=torch.uint8),
    }


def write_checkpoint(path: Path, tensors: Tensors, trailing: int = 65) -> Path:
    """A file with some bytes after its payload, as a published one has."""
    save_file(tensors, path)
    with path.open("ab") as file:
        file.write(b"\0" * trailing)
    return path
