"""A denoiser out of a pruned checkpoint, whole or in part packed in NVFP4."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from kclab.core.errors import BadUsage, BlobDamaged
from kclab.h3.blocks import Blocks
from kclab.h3.checkpoint_file import CheckpointFile, file_sha256
from kclab.h3.checkpoint_layout import (
    BLOCK_CURVE,
    BLOCK_LINEARS,
    BLOCK_PLAIN,
    ENDS,
    block_prefix,
    check_names,
    is_packed,
    refiner_prefix,
    sizes_of,
)
from kclab.h3.model import Denoiser
from kclab.h3.packed import PackedLinear, multiplies_natively, scales_shape
from kclab.h3.parts import Ends, make_block, make_ends, materialise, use_attention
from kclab.h3.sizes import Sizes

if TYPE_CHECKING:
    from torch import Tensor

NVFP4_FORMAT = "nvfp4"
NAN_SCALE = 0x7F
"""The UE4M3 byte that is NaN; seen in wrongly made files."""


def load_denoiser(
    path: Path, device: str, *, attention: str | None = None, kept: Container[int] = ()
) -> Denoiser:
    """The model of a checkpoint; blocks outside `kept` are read again each time they run.

    Raises BadUsage, BlobDamaged or EnvironmentLacking naming the file and what is wrong with it.
    """
    file = CheckpointFile(path)
    sizes = sizes_of(file)
    check_names(file, sizes)
    reader = _Reader(file, sizes, device, multiplies_natively(device))

    def make(index: int) -> nn.Module:
        block = reader.block(index)
        use_attention(block, attention)
        return block

    ends = reader.ends()
    use_attention(ends, attention)
    return Denoiser(sizes, ends, Blocks(sizes.layers, make, kept), device)


class _Reader:
    """Fills modules with a file's tensors."""

    def __init__(self, file: CheckpointFile, sizes: Sizes, device: str, native: bool):
        self._file, self._sizes, self._device, self._native = file, sizes, device, native

    def block(self, index: int) -> nn.Module:
        """Transformer block `index`."""
        block = make_block(self._sizes, curve=True)
        materialise(block, self._device)
        self._fill_block(block, block_prefix(index), {**BLOCK_PLAIN, **BLOCK_CURVE})
        return block

    def ends(self) -> Ends:
        """Everything around the blocks."""
        ends = make_ends(self._sizes, curve=True)
        materialise(ends, self._device)
        for index, block in enumerate(ends.refiner.get_submodule("refiner_blocks").children()):
            self._fill_block(block, refiner_prefix(index), BLOCK_PLAIN)
        self._fill(ends, "", ENDS)
        return ends

    def _fill_block(self, block: nn.Module, prefix: str, plain: Mapping[str, str]) -> None:
        for stored, own in BLOCK_LINEARS.items():
            if is_packed(self._file, prefix + stored):
                _replace(block, own, self._packed(prefix + stored, block.get_submodule(own)))
        self._fill(block, prefix, plain)
        rest = {
            f"{stored}.weight": f"{own}.weight"
            for stored, own in BLOCK_LINEARS.items()
            if not is_packed(self._file, prefix + stored)
        }
        self._fill(block, prefix, rest)

    @torch.no_grad()
    def _fill(self, module: nn.Module, prefix: str, names: Mapping[str, str]) -> None:
        targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for stored, own in names.items():
            value = self._file.read(prefix + stored, self._device)
            target = targets[own]
            if value.shape != target.shape or not value.is_floating_point():
                raise BadUsage(
                    f"{self._file.path}: {prefix}{stored} is {value.dtype} {list(value.shape)}; "
                    f"floating-point {list(target.shape)} is expected."
                )
            target.copy_(value)

    def _packed(self, stem: str, linear: nn.Module) -> PackedLinear:
        n, k = linear.get_parameter("weight").shape
        self._check_format(stem)
        codes = self._part(stem, "weight", (n, k // 2))
        scales = self._part(stem, "weight_scale", scales_shape(n, k)).view(torch.uint8)
        if bool((scales == NAN_SCALE).any()):
            raise BlobDamaged(f"{self._file.path}: {stem}.weight_scale holds NaN.")
        tensor_scale = self._part(stem, "weight_scale_2", ()).float()
        return PackedLinear(
            codes, scales.view(torch.float8_e4m3fn), tensor_scale, native=self._native
        )

    def _part(self, stem: str, name: str, shape: tuple[int, ...]) -> Tensor:
        value = self._file.read(f"{stem}.{name}", self._device)
        if value.numel() == 1 and not shape:
            return value.reshape(())
        if tuple(value.shape) != shape or value.element_size() != 1:
            raise BadUsage(
                f"{self._file.path}: {stem}.{name} is {value.dtype} {list(value.shape)}; "
                f"{list(shape)} of one byte each is expected."
            )
        return value

    def _check_format(self, stem: str) -> None:
        text = bytes(self._file.read(f"{stem}.comfy_quant", "cpu").tolist())
        try:
            found = json.loads(text)["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadUsage(f"{self._file.path}: {stem}.comfy_quant names no format.") from error
        if found != NVFP4_FORMAT:
            raise BadUsage(
                f"{self._file.path}: {stem} is packed as {found!r}; only {NVFP4_FORMAT} is read."
            )


def _replace(block: nn.Module, name: str, linear: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    block.get_submodule(parent).register_module(last, linear)


__all__ = ["file_sha256", "load_denoiser"]
