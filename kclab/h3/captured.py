"""Starting activations that were captured elsewhere: `input.pt`, read without unpickling code."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kclab.core.errors import BadUsage, EnvironmentLacking
from kclab.h3.packing import ModulatedSegment, Packed
from kclab.h3.sizes import MODALITIES, Sizes

if TYPE_CHECKING:
    from torch import Tensor

FILE_NAME = "input.pt"
FIELDS = ("hidden", "timesteps", "position_ids", "segments")


def read_input(path: Path, sizes: Sizes, device: str) -> Packed:
    """The packed sequence of a captured file, or of `input.pt` in a folder.

    It holds hidden [S, hidden], timesteps [T] in [0, 1], position_ids [S, 3] and segments, a list
    of (start, stop, row of the modulation tables). Raises BadUsage naming what is wrong.
    """
    file = path / FILE_NAME if path.is_dir() else path
    payload = _load(file)
    missing = [name for name in FIELDS if name not in payload]
    if missing:
        raise BadUsage(f"{file}: no {', '.join(missing)}; {', '.join(FIELDS)} are expected.")
    hidden = _matrix(file, payload, "hidden", sizes.hidden)
    positions = _matrix(file, payload, "position_ids", 3)
    times = _times(file, payload["timesteps"])
    segments = _segments(file, payload["segments"], len(hidden), len(times))
    if len(positions) != len(hidden):
        raise BadUsage(f"{file}: {len(hidden)} tokens but {len(positions)} position_ids.")
    return Packed(
        hidden.to(device, torch.bfloat16).contiguous(),
        times.to(device),
        segments,
        positions.to(device, torch.float64),
    )


def _load(file: Path) -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            # torch warns of pickle protocols that it then refuses.
            warnings.simplefilter("ignore")
            payload = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise EnvironmentLacking(f"{file}: no such file.") from None
    except pickle.UnpicklingError as error:
        raise BadUsage(
            f"{file}: holds pickled objects besides tensors, lists and numbers, and kclab never "
            "runs code out of a file; save those alone."
        ) from error
    except Exception as error:  # a damaged file fails anywhere inside torch's reader
        raise BadUsage(f"{file}: cannot be read as a torch file ({error}).") from error
    if not isinstance(payload, Mapping):
        raise BadUsage(f"{file}: holds a {type(payload).__name__}, not a dictionary of tensors.")
    return payload


def _matrix(file: Path, payload: Mapping[str, Any], name: str, width: int) -> Tensor:
    """[S, width]; a leading batch of one is dropped."""
    value = payload[name]
    if isinstance(value, torch.Tensor) and value.ndim == 3 and len(value) == 1:
        value = value[0]
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.shape[1] != width:
        found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise BadUsage(f"{file}: {name} is {found}; [tokens, {width}] is expected.")
    return value


def _times(file: Path, value: Any) -> Tensor:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        raise BadUsage(f"{file}: timesteps are no floating-point tensor.")
    times = value.reshape(-1).float()
    if not bool(((times >= 0) & (times <= 1)).all()):
        raise BadUsage(f"{file}: timesteps run from 0 (noise) to 1 (clean), {times} do not.")
    return times


def _segments(file: Path, value: Any, tokens: int, times: int) -> tuple[ModulatedSegment, ...]:
    try:
        found = tuple(ModulatedSegment(*(int(number) for number in item)) for item in value)
    except (TypeError, ValueError) as error:
        raise BadUsage(f"{file}: segments are no list of (start, stop, row).") from error
    place = 0
    for segment in found:
        if segment.start != place or segment.stop < segment.start:
            raise BadUsage(f"{file}: segments leave a hole or overlap at token {segment.start}.")
        if not 0 <= segment.row < MODALITIES * times:
            raise BadUsage(
                f"{file}: a segment uses modulation row {segment.row}, and {times} timesteps "
                f"have rows up to {MODALITIES * times - 1}."
            )
        place = segment.stop
    if place != tokens:
        raise BadUsage(f"{file}: segments cover {place} of {tokens} tokens.")
    return found
