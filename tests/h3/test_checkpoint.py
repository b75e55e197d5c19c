"""Pruned checkpoints, packed in NVFP4 whole, in part or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from kclab.core.errors import BadUsage, BlobDamaged, EnvironmentLacking
from kclab.fc2 import nvfp4
from kclab.h3.checkpoint import load_denoiser
from kclab.h3.checkpoint_file import TRAILING_TOLERANCE, file_sha256
from kclab.h3.curve import CurveTime
from kclab.h3.feed_forward import fc2_of
from kclab.h3.packed import PackedLinear
from kclab.h3.packing import random_latents
from kclab.h3.sampler import Latents
from kclab.h3.sizes import Sizes
from tests.h3.checkpoints import (
    FFN,
    HIDDEN,
    Tensors,
    checkpoint_tensors,
    everything,
    nothing,
    write_checkpoint,
)
from tests.h3.conftest import LAYOUT


@pytest.fixture(scope="module")
def packed_tensors() -> Tensors:
    return checkpoint_tensors(2)


def first_fc2(stem: str) -> bool:
    return stem == "blocks.0.mlp.fc2"


def outputs(path: Path) -> Latents:
    """What a checkpoint's model says at one noise level."""
    model = load_denoiser(path, "cpu", kept=range(50))
    latents, generator = random_latents(LAYOUT, (8, 8), 3)
    text = torch.randn(LAYOUT.text, 48, generator=generator)
    with torch.inference_mode():
        return model.velocity(LAYOUT, text)(latents, 0.7)


def dequantised(tensors: Tensors) -> Tensors:
    """The same model with plain weights: what the packed ones stand for."""
    found = dict(tensors)
    for name in [name for name in tensors if name.endswith(".weight_scale_2")]:
        stem = name.removesuffix(".weight_scale_2")
        values = nvfp4.dequantise(found[f"{stem}.weight"], found.pop(f"{stem}.weight_scale"))
        found[f"{stem}.weight"] = (values * found.pop(name)).bfloat16()
        del found[f"{stem}.comfy_quant"]
    return found


def test_the_whole_packed_model_of_50_blocks_is_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "pruned_nvfp4.safetensors", checkpoint_tensors())
    model = load_denoiser(path, "cpu")
    assert model.sizes == Sizes(64, 128, 50, 2, 3, 32, 48, 8, 8, 256, 5376, 8, 4)
    assert len(model.blocks) == 50
    found = outputs(path)
    assert found.video.isfinite().all() and found.video.std() > 0
    assert found.audio.isfinite().all() and found.audio.std() > 0


def test_packed_layers_compute_with_the_weights_they_stand_for(
    tmp_path: Path, packed_tensors: Tensors
) -> None:
    packed = outputs(write_checkpoint(tmp_path / "packed", packed_tensors))
    plain = outputs(write_checkpoint(tmp_path / "plain", dequantised(packed_tensors), 0))
    assert torch.equal(packed.video, plain.video)
    assert torch.equal(packed.audio, plain.audio)


def test_only_the_packed_linears_of_a_partly_packed_file_are_packed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "part", checkpoint_tensors(2, first_fc2))
    model = load_denoiser(path, "cpu")
    assert isinstance(fc2_of(model.blocks[0]).linear, PackedLinear)
    assert isinstance(fc2_of(model.blocks[1]).linear, torch.nn.Linear)
    assert not any(isinstance(part, PackedLinear) for part in model.ends.modules())


def test_every_stored_value_reaches_the_model(tmp_path: Path) -> None:
    tensors = checkpoint_tensors(1, nothing)
    base = outputs(write_checkpoint(tmp_path / "base", tensors))
    for name in sorted(tensors):
        changed = {**tensors, name: tensors[name] + (tensors[name].abs() + 0.5)}
        other = outputs(write_checkpoint(tmp_path / "other", changed))
        same = torch.equal(base.video, other.video) and torch.equal(base.audio, other.audio)
        assert not same, name


def test_the_gate_is_the_first_half_of_fc1(tmp_path: Path) -> None:
    tensors = checkpoint_tensors(1, nothing)
    name = "blocks.0.mlp.fc1.weight"
    closed = tensors[name].clone()
    closed[:FFN] = 0
    model = load_denoiser(write_checkpoint(tmp_path / "x", {**tensors, name: closed}), "cpu")
    # silu(0) = 0 whatever the other half says.
    assert not model.blocks[0].get_submodule("ff")(torch.randn(3, HIDDEN).bfloat16()).any()


def test_the_curve_is_interpolated_between_its_1025_points() -> None:
    curve = CurveTime(2)
    curve.table = torch.nn.Parameter(torch.arange(1025.0)[:, None] * torch.tensor([1.0, -2.0]))
    times = torch.tensor([0.0, 0.25, 0.3001, 1.0])
    expected = (times * 1024)[:, None] * torch.tensor([1.0, -2.0])
    torch.testing.assert_close(curve(times), expected)


def test_bytes_after_the_payload_are_tolerated_up_to_a_limit(
    tmp_path: Path, packed_tensors: Tensors
) -> None:
    load_denoiser(write_checkpoint(tmp_path / "a", packed_tensors, TRAILING_TOLERANCE), "cpu")
    with pytest.raises(BlobDamaged, match="bytes"):
        load_denoiser(
            write_checkpoint(tmp_path / "b", packed_tensors, TRAILING_TOLERANCE + 1), "cpu"
        )


def test_a_shortened_file_is_refused(tmp_path: Path, packed_tensors: Tensors) -> None:
    path = write_checkpoint(tmp_path / "short", packed_tensors, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BlobDamaged, match="short"):
        load_denoiser(path, "cpu")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="no such file"):
        load_denoiser(tmp_path / "nowhere.safetensors", "cpu")


def broken(tensors: Tensors, **changes: torch.Tensor | None) -> Tensors:
    found = {**tensors, **{n: t for n, t in changes.items() if t is not None}}
    return {name: found[name] for name in found if changes.get(name, 0) is not None}


def quant(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


FC2 = "blocks.1.mlp.fc2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaln_t_table": None}, "no adaln_t_table; only pruned"),
        ({"blocks.1.norm1.weight": None}, r"no tensor 'blocks\.1\.norm1"),
        ({f"{FC2}.comfy_quant": None}, "no tensor .*comfy_quant"),
        ({f"{FC2}.weight_scale": None}, "no tensor .*weight_scale'"),
        ({"blocks.1.mlp.fc2.bias": torch.zeros(64)}, "fc2.bias' is unknown"),
        ({f"{FC2}.input_scale": torch.ones(())}, "fixes an activation scale"),
        ({f"{FC2}.comfy_quant": quant('{"format": "mxfp8"}')}, "packed as 'mxfp8'"),
        ({f"{FC2}.comfy_quant": quant("nvfp4")}, "names no format"),
        ({f"{FC2}.weight": torch.zeros(64, 60, dtype=torch.uint8)}, r"\[64, 64\] of one byte"),
        ({f"{FC2}.weight_scale": torch.zeros(64, 8, dtype=torch.uint8)}, r"\[128, 8\] of one"),
        ({"blocks.1.norm2.weight": torch.ones(63)}, r"norm2.weight is .* \[64\] is expected"),
    ],
)
def test_what_a_checkpoint_lacks_or_has_too_much_is_named(
    tmp_path: Path, packed_tensors: Tensors, changes: dict[str, torch.Tensor | None], message: str
) -> None:
    path = write_checkpoint(tmp_path / "wrong", broken(packed_tensors, **changes))
    with pytest.raises(BadUsage, match=message):
        outputs(path)


def test_a_layer_that_is_missing_in_the_middle_is_named(tmp_path: Path) -> None:
    tensors = checkpoint_tensors(3)
    left = {name: t for name, t in tensors.items() if not name.startswith("blocks.1.")}
    with pytest.raises(BadUsage, match=r"blocks\.1 is missing"):
        load_denoiser(write_checkpoint(tmp_path / "gap", left), "cpu")


def test_nan_in_the_scales_is_damage(tmp_path: Path, packed_tensors: Tensors) -> None:
    scales = packed_tensors[f"{FC2}.weight_scale"].view(torch.uint8).clone()
    scales[3, 2] = 0x7F
    wrong = {**packed_tensors, f"{FC2}.weight_scale": scales}
    with pytest.raises(BlobDamaged, match="weight_scale holds NaN"):
        outputs(write_checkpoint(tmp_path / "nan", wrong))


def test_scales_written_as_plain_bytes_are_read_alike(
    tmp_path: Path, packed_tensors: Tensors
) -> None:
    plain = {
        name: t.view(torch.uint8) if name.endswith(".weight_scale") else t
        for name, t in packed_tensors.items()
    }
    first = outputs(write_checkpoint(tmp_path / "f8", packed_tensors))
    assert torch.equal(outputs(write_checkpoint(tmp_path / "u8", plain)).video, first.video)


def test_the_sha256_is_of_the_whole_file(tmp_path: Path, packed_tensors: Tensors) -> None:
    path = write_checkpoint(tmp_path / "x", packed_tensors)
    assert file_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_formats_are_what_the_writer_says(packed_tensors: Tensors) -> None:
    """The test's own file looks like the published ones."""
    assert len(checkpoint_tensors(50, nothing)) == 532
    assert len(checkpoint_tensors(50, everything)) == 532 + 3 * (200 + 8)
    assert json.loads(bytes(packed_tensors[f"{FC2}.comfy_quant"].tolist())) == {"format": "nvfp4"}
