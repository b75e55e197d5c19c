"""Names and shapes in pruned MiniMax-H3 checkpoints, and the sizes that follow from them.

After `minimax_h3_fl2va_pruned_nvfp4.safetensors` as its headers are published: the 532 tensors of
the pruned bfloat16 file, where a packed linear has, for its weight [N, K],
`weight` U8 [N, K/2], `weight_scale` (UE4M3, swizzled), `weight_scale_2` F32 and `comfy_quant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kclab.core.errors import BadUsage
from kclab.h3.checkpoint_file import CheckpointFile
from kclab.h3.sizes import PATCH, Sizes

PACKED_DTYPE = "uint8"

BLOCK_LINEARS = {
    "attn.qkv_proj": "attn.to_qkv",
    "attn.out_proj": "attn.to_out.0",
    "mlp.fc1": "ff.fc1",
    "mlp.fc2": "ff.fc2.linear",
}
"""Linear layers that may be packed: their name in a file, and in a block here."""

BLOCK_PLAIN = {
    "norm1.weight": "norm1.weight",
    "norm2.weight": "norm2.weight",
    "attn.q_norm.weight": "attn.norm_q.weight",
    "attn.k_norm.weight": "attn.norm_k.weight",
}
"""Of a transformer block and of a refiner block."""

BLOCK_CURVE = {
    "adaln_proj.linear.weight": "adaln_proj.linear.weight",
    "adaln_proj.linear.bias": "adaln_proj.linear.bias",
}

ENDS = {
    "video_patch_proj.weight": "video_in.weight",
    "video_patch_proj.bias": "video_in.bias",
    "audio_patch_proj.weight": "audio_in.weight",
    "audio_patch_proj.bias": "audio_in.bias",
    "condition_proj.weight": "text_in.weight",
    "condition_proj.bias": "text_in.bias",
    "adaln_t_table": "time.table",
    "rope.inv_freq": "rope.inv_freq",
    "token_refiner.final_norm.weight": "refiner.final_norm.weight",
    "final_layer.norm.weight": "norm_out.norm.weight",
    "final_layer.adaln_proj.linear.weight": "norm_out.linear.weight",
    "final_layer.adaln_proj.linear.bias": "norm_out.linear.bias",
    "final_layer.video_out.weight": "video_out.weight",
    "final_layer.video_out.bias": "video_out.bias",
    "final_layer.audio_out.weight": "audio_out.weight",
    "final_layer.audio_out.bias": "audio_out.bias",
}

PACKED_PARTS = ("weight_scale", "weight_scale_2", "comfy_quant")
"""What a packed linear has besides its weight."""

STATIC_SCALE = "input_scale"
"""A fixed activation scale; published files have none, and nothing here would use it."""


def block_prefix(index: int) -> str:
    """What a transformer block's tensors begin with."""
    return f"blocks.{index}."


def refiner_prefix(index: int) -> str:
    """What a refiner block's tensors begin with."""
    return f"token_refiner.blocks.{index}."


def sizes_of(file: CheckpointFile) -> Sizes:
    """The model's sizes. Raises BadUsage where the file is no pruned checkpoint."""
    if "adaln_t_table" not in file:
        raise BadUsage(
            f"{file.path}: no adaln_t_table; only pruned checkpoints, whose AdaLN is a curve over "
            "time, are read."
        )
    head_dim = file.slot("blocks.0.attn.q_norm.weight").shape[0]
    hidden = file.slot("blocks.0.norm1.weight").shape[0]
    return Sizes(
        hidden=hidden,
        ffn=file.slot("blocks.0.mlp.fc1.weight").shape[0] // 2,
        layers=_count(file, "blocks"),
        refiner_layers=_count(file, "token_refiner.blocks"),
        heads=file.slot("blocks.0.attn.qkv_proj.weight").shape[0] // (3 * head_dim),
        head_dim=head_dim,
        text_dim=file.slot("condition_proj.weight").shape[-1],
        video_channels=file.slot("video_patch_proj.weight").shape[-1] // PATCH**2,
        audio_channels=file.slot("audio_patch_proj.weight").shape[-1],
        time_dim=file.slot("adaln_t_table").shape[-1],
        rope_freqs=file.slot("rope.inv_freq").shape[0],
    )


def _count(file: CheckpointFile, stem: str) -> int:
    pattern = re.compile(rf"{re.escape(stem)}\.(\d+)\.")
    found = {int(match[1]) for name in file.slots if (match := pattern.match(name))}
    if found != set(range(len(found))):
        missing = min(set(range(max(found) + 1)) - found)
        raise BadUsage(f"{file.path}: {stem}.{missing} is missing.")
    return len(found)


def expected_names(file: CheckpointFile, sizes: Sizes) -> Iterator[str]:
    """Every tensor that a file of these sizes has, those of its packed linears included."""
    yield from ENDS
    for index in range(sizes.layers):
        yield from _block_names(file, block_prefix(index))
        yield from (block_prefix(index) + name for name in BLOCK_CURVE)
    for index in range(sizes.refiner_layers):
        yield from _block_names(file, refiner_prefix(index))


def _block_names(file: CheckpointFile, prefix: str) -> Iterator[str]:
    yield from (prefix + name for name in BLOCK_PLAIN)
    for name in BLOCK_LINEARS:
        stem = prefix + name
        yield f"{stem}.weight"
        if is_packed(file, stem):
            yield from (f"{stem}.{part}" for part in PACKED_PARTS)


def is_packed(file: CheckpointFile, stem: str) -> bool:
    """Whether a linear's weight is stored in 4 bits."""
    return file.slot(f"{stem}.weight").dtype == PACKED_DTYPE


def check_names(file: CheckpointFile, sizes: Sizes) -> None:
    """Raise BadUsage naming a tensor that is missing or that nothing here understands."""
    static = sorted(name for name in file.slots if name.endswith(f".{STATIC_SCALE}"))
    if static:
        raise BadUsage(
            f"{file.path}: {static[0]} fixes an activation scale; only dynamic ones are read."
        )
    expected = set(expected_names(file, sizes))
    missing = sorted(expected - set(file.slots))
    if missing:
        raise BadUsage(f"{file.path}: no tensor {missing[0]!r} ({len(missing)} are missing).")
    unknown = sorted(set(file.slots) - expected)
    if unknown:
        raise BadUsage(f"{file.path}: tensor {unknown[0]!r} is unknown ({len(unknown)} are).")
