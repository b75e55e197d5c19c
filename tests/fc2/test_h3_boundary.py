"""Boundaries out of a running model: what is captured, checked, stored and refused."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kclab.core.errors import BadUsage, CheckFailed, EnvironmentLacking
from kclab.db.store import Store
from kclab.fc2 import capture_h3, h3_fc2, nvfp4
from kclab.fc2.backends.cpu import Cpu
from kclab.fc2.boundary import Boundary, find_boundary, load_boundary
from kclab.fc2.h3_boundary import Traversal, Wanted, traverse
from kclab.fc2.h3_fc2 import weight_operands
from kclab.fc2.h3_options import REQUIRED_BLOCKS, H3Options
from kclab.fc2.operands import exact_rows, quantise_fp8
from kclab.fc2.problem import Precision
from kclab.fc2.producer_check import check_producer
from kclab.h3 import layout
from kclab.h3.feed_forward import Fc2, swiglu
from kclab.h3.model import random_denoiser, run_block
from kclab.h3.request import CANONICAL_REQUEST, TINY_REQUEST
from kclab.h3.sizes import TINY
from tests.h3.checkpoints import checkpoint_tensors, write_checkpoint

TINY_OPTIONS = H3Options(sizes=TINY, request=TINY_REQUEST)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Small products on a busy machine: threads only wait for each other."""
    torch.set_num_threads(1)


def taken(options: H3Options) -> Traversal:
    return traverse(options, Cpu(), Wanted(options.blocks, options.blocks))


@pytest.fixture(scope="module")
def captured() -> dict[Precision, dict[int, Boundary]]:
    """Boundaries of the three blocks, by precision."""
    return {
        precision: taken(replace(TINY_OPTIONS, precision=precision)).boundaries
        for precision in Precision
    }


def test_the_activation_is_swiglu_of_fc1s_output(
    captured: dict[Precision, dict[int, Boundary]],
) -> None:
    boundary = captured[Precision.BF16][24]
    assert boundary.gate_up is not None
    assert boundary.gate_up.shape == (123, 2 * TINY.ffn)
    assert torch.equal(boundary.operands.activation, swiglu(boundary.gate_up))


def test_a_blocks_input_and_output_are_what_the_plain_model_computes(
    captured: dict[Precision, dict[int, Boundary]],
) -> None:
    model = random_denoiser(TINY, TINY_REQUEST.seed, "cpu")
    noise, text = TINY_REQUEST.start(TINY, "cpu")
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def look(index: int, block: Any, hidden: torch.Tensor, conditioning: Any) -> torch.Tensor:
        after = run_block(index, block, hidden, conditioning)
        seen[index] = hidden, after
        return after

    with torch.inference_mode():
        packed = model.pack(TINY_REQUEST.layout, text, noise, 1.0)
        model.traverse(packed.hidden, model.condition(packed), look)
    boundary = captured[Precision.BF16][0]
    assert boundary.block_input is not None and boundary.block_output is not None
    assert torch.equal(boundary.block_input, seen[0][0])
    torch.testing.assert_close(boundary.block_output, seen[0][1], rtol=0.02, atol=0.02)
    last = captured[Precision.BF16][49]
    assert last.block_output is not None
    distance = (last.block_output.float() - seen[49][1].float()).norm() / seen[49][1].norm()
    assert distance < 0.02


@pytest.mark.parametrize("precision", list(Precision))
def test_operands_stand_for_the_blocks_own_product(
    captured: dict[Precision, dict[int, Boundary]], precision: Precision
) -> None:
    boundary = captured[precision][49]
    assert boundary.gate_up is not None
    weight = random_denoiser(TINY, TINY_REQUEST.seed, "cpu").blocks[49].state_dict()
    rows = torch.tensor([0, 60, 122])
    plain = swiglu(boundary.gate_up)[rows].float() @ weight["ff.fc2.linear.weight"].float().T
    found = exact_rows(boundary.problem, boundary.operands, rows).float()
    limit = {Precision.BF16: 0.004, Precision.FP8: 0.05, Precision.NVFP4: 0.2}[precision]
    assert (found - plain).norm() / plain.norm() < limit


def test_nvfp4_alpha_is_the_product_of_both_tensor_scales(
    captured: dict[Precision, dict[int, Boundary]],
) -> None:
    operands = captured[Precision.NVFP4][0].operands
    assert operands.activation_tensor_scale is not None
    assert operands.weight_tensor_scale is not None and operands.alpha is not None
    product = operands.activation_tensor_scale * operands.weight_tensor_scale
    assert torch.equal(operands.alpha, product)
    assert operands.activation.shape == (128, TINY.ffn // 2)
    assert operands.activation_scale is not None
    assert operands.activation_scale.shape == nvfp4.swizzled_shape(128, TINY.ffn)


def test_fast_accumulation_is_part_of_the_problem() -> None:
    options = replace(TINY_OPTIONS, precision=Precision.FP8, fast_accumulation=True)
    assert taken(options).problem.numerics == "fp8_e4m3+fast"


def test_a_captured_boundary_comes_back_from_the_store_whole(store: Store) -> None:
    options = replace(TINY_OPTIONS, precision=Precision.FP8)
    ids = capture_h3(store, options, "cpu").boundary_ids
    assert list(ids) == list(REQUIRED_BLOCKS)
    original = taken(options).boundaries[24]
    with closing(store.read()) as connection:
        uuid = connection.execute(
            "SELECT w.uuid FROM fc2_boundary b JOIN workload w ON w.id = b.workload_id"
            " WHERE b.block = 24"
        ).fetchone()[0]
        found = load_boundary(store, connection, find_boundary(connection, uuid), "cpu")
    assert (found.source, found.block) == ("h3", 24)
    assert found.recipe["start"]["sampler_step"] == 1
    assert found.recipe["model"]["sizes"]["hidden"] == TINY.hidden
    for name in ("gate_up", "block_input", "block_output"):
        assert torch.equal(getattr(found, name), getattr(original, name))
    for name, tensor in original.operands.tensors().items():
        stored = found.operands.tensors()[name]
        assert torch.equal(stored.view(torch.uint8), tensor.view(torch.uint8)), name


def test_a_later_step_is_reached_by_denoising() -> None:
    request = replace(TINY_REQUEST, sampler_step=3)
    model = taken(replace(TINY_OPTIONS, request=request))
    first = taken(TINY_OPTIONS)
    assert len(model.conditioning.embedded) == 2
    assert len(first.conditioning.embedded) == 1
    one, other = model.boundaries[0].block_input, first.boundaries[0].block_input
    assert one is not None and other is not None
    assert not torch.equal(one, other)
    # Text does not change while video and audio are denoised.
    assert torch.equal(one[:7], other[:7])


def test_other_blocks_may_be_added_to_the_required_ones() -> None:
    assert set(taken(replace(TINY_OPTIONS, blocks=(0, 7, 24, 49))).boundaries) == {0, 7, 24, 49}


def test_required_blocks_cannot_be_left_out() -> None:
    with pytest.raises(BadUsage, match="blocks 24 are missing"):
        H3Options(blocks=(0, 49), probe=0)
    with pytest.raises(BadUsage, match="probe block 5"):
        H3Options(probe=5)


def test_a_block_whose_fc2_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kclab.fc2 import h3_boundary

    def around_fc2(index: int, block: Any, hidden: torch.Tensor, _c: Any) -> torch.Tensor:
        return hidden if index == 24 else run_block(index, block, hidden, _c)

    monkeypatch.setattr(h3_boundary, "run_block", around_fc2)
    with pytest.raises(CheckFailed, match="block 24: its FC2 did not run"):
        taken(TINY_OPTIONS)


def test_a_canonical_workload_of_another_length_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CANONICAL_REQUEST.layout.tokens == 37_810
    monkeypatch.setattr(layout, "AUDIO_PER_SECOND", 50)
    with pytest.raises(CheckFailed, match=r"37,810 tokens, this one 37,\d+"):
        _ = CANONICAL_REQUEST.layout


def test_a_biased_fc2_is_refused() -> None:
    fc2 = Fc2(128, 64)
    fc2.linear = torch.nn.Linear(128, 64, bias=True)
    with pytest.raises(BadUsage, match="has a bias"):
        weight_operands(Precision.BF16, fc2)


@pytest.mark.parametrize("precision", list(Precision))
def test_a_producer_with_its_gate_second_is_caught(
    monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    right = h3_fc2.produce

    def wrong(problem: Any, gate_up: torch.Tensor, weights: Any) -> Any:
        return right(problem, torch.cat(gate_up.chunk(2, -1)[::-1], -1), weights)

    monkeypatch.setattr(h3_fc2, "produce", wrong)
    with pytest.raises(CheckFailed, match="producer is"):
        taken(replace(TINY_OPTIONS, precision=precision))


def test_scales_in_another_layout_are_caught(
    captured: dict[Precision, dict[int, Boundary]],
) -> None:
    boundary = captured[Precision.NVFP4][0]
    operands, gate_up = boundary.operands, boundary.gate_up
    assert operands.activation_scale is not None and gate_up is not None
    check_producer(boundary.problem, gate_up, operands)
    plain = nvfp4.unswizzle(operands.activation_scale, *operands.activation_scale.shape)
    with pytest.raises(CheckFailed, match="producer"):
        check_producer(boundary.problem, gate_up, replace(operands, activation_scale=plain))
    swapped = operands.activation >> 4 | operands.activation << 4
    with pytest.raises(CheckFailed, match="producer"):
        check_producer(boundary.problem, gate_up, replace(operands, activation=swapped))


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.NVFP4])
def test_padding_that_is_not_zero_is_caught(
    captured: dict[Precision, dict[int, Boundary]], precision: Precision
) -> None:
    boundary = captured[precision][0]
    assert boundary.gate_up is not None
    spoiled = boundary.operands.activation.clone()
    spoiled.view(torch.uint8)[boundary.problem.m, 0] = 0x22
    with pytest.raises(CheckFailed, match="padding rows 123 to 128"):
        check_producer(
            boundary.problem, boundary.gate_up, replace(boundary.operands, activation=spoiled)
        )


# Checkpoints


def part(stem: str) -> bool:
    """Pack block 0's FC2, and all of the others but FC2."""
    return stem == "blocks.0.mlp.fc2" or not stem.endswith("mlp.fc2")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    return write_checkpoint(
        folder / "minimax_h3_part_nvfp4.safetensors", checkpoint_tensors(50, part)
    )


def test_packed_weights_of_a_checkpoint_are_taken_as_they_are(checkpoint: Path) -> None:
    options = replace(TINY_OPTIONS, checkpoint=checkpoint, precision=Precision.NVFP4)
    boundaries = taken(options).boundaries
    stored = checkpoint_tensors(50, part)
    operands = boundaries[0].operands
    assert torch.equal(operands.weight, stored["blocks.0.mlp.fc2.weight"])
    assert operands.weight_scale is not None and operands.weight_tensor_scale is not None
    scales = stored["blocks.0.mlp.fc2.weight_scale"]
    assert torch.equal(operands.weight_scale.view(torch.uint8), scales.view(torch.uint8))
    assert float(operands.weight_tensor_scale) == float(stored["blocks.0.mlp.fc2.weight_scale_2"])
    quantised = nvfp4.quantise(stored["blocks.24.mlp.fc2.weight"])
    assert torch.equal(boundaries[24].operands.weight, quantised.codes)


def test_other_precisions_use_the_weights_that_packed_ones_stand_for(checkpoint: Path) -> None:
    boundaries = taken(
        replace(TINY_OPTIONS, checkpoint=checkpoint, precision=Precision.FP8)
    ).boundaries
    stored = checkpoint_tensors(50, part)
    codes, scales = (stored[f"blocks.0.mlp.fc2.{n}"] for n in ("weight", "weight_scale"))
    plain = nvfp4.dequantise(codes, scales) * stored["blocks.0.mlp.fc2.weight_scale_2"]
    values, _ = quantise_fp8(plain.bfloat16())
    assert torch.equal(boundaries[0].operands.weight.float(), values.float())


@pytest.mark.parametrize("hashed", [False, True])
def test_a_checkpoints_sha256_is_computed_only_when_asked(
    store: Store, checkpoint: Path, hashed: bool
) -> None:
    options = replace(TINY_OPTIONS, checkpoint=checkpoint, hash_checkpoint=hashed)
    capture_h3(store, options, "cpu")
    with closing(store.read()) as connection:
        rows = connection.execute("SELECT source, recipe FROM fc2_boundary").fetchall()
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    for source, recipe in rows:
        assert source == "checkpoint"
        found = json.loads(recipe)["model"]
        assert found["file"] == checkpoint.name
        assert found["sha256"] == (digest if hashed else "not calculated")


# Captured activations


@pytest.fixture
def payload() -> dict[str, Any]:
    """What a captured input.pt holds, of the tiny request's first step."""
    model = random_denoiser(TINY, TINY_REQUEST.seed, "cpu")
    noise, text = TINY_REQUEST.start(TINY, "cpu")
    packed = model.pack(TINY_REQUEST.layout, text, noise, 1.0)
    return {
        "hidden": packed.hidden,
        "timesteps": packed.times,
        "position_ids": packed.positions,
        "segments": [(s.start, s.stop, s.row) for s in packed.segments],
    }


def test_captured_activations_start_a_traversal(tmp_path: Path, payload: dict[str, Any]) -> None:
    torch.save(payload, tmp_path / "input.pt")
    found = taken(replace(TINY_OPTIONS, input=tmp_path))
    expected = taken(TINY_OPTIONS)
    assert found.boundaries[49].source == "captured"
    assert found.boundaries[49].recipe["start"] == {"input": tmp_path.name}
    one, other = found.boundaries[49].gate_up, expected.boundaries[49].gate_up
    assert one is not None and other is not None
    assert torch.equal(one, other)


class Command:
    """What a pickle may do when it is read."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("pickle-was-run"),)


def test_a_pickle_is_refused_and_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({**payload, "extra": Command()}, tmp_path / "input.pt")
    with pytest.raises(BadUsage, match="never runs code out of a file"):
        taken(replace(TINY_OPTIONS, input=tmp_path / "input.pt"))
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Command()))
    with pytest.raises(BadUsage, match=r"plain\.pt"):
        taken(replace(TINY_OPTIONS, input=tmp_path / "plain.pt"))
    assert not Path("pickle-was-run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(123, 65)}, r"hidden is \[123, 65\]; \[tokens, 64\]"),
        ({"hidden": "text"}, "hidden is str"),
        ({"position_ids": torch.zeros(5, 3)}, "123 tokens but 5 position_ids"),
        ({"timesteps": torch.tensor([1000.0])}, "run from 0"),
        ({"timesteps": torch.tensor([1])}, "no floating-point tensor"),
        ({"segments": [(0, 123, 3)]}, "row 3, and 1 timesteps have rows up to 2"),
        ({"segments": [(0, 5, 1), (6, 123, 0)]}, "a hole or overlap at token 6"),
        ({"segments": [(0, 120, 1)]}, "cover 120 of 123 tokens"),
        ({"segments": [(0, 123)]}, "no list of"),
    ],
)
def test_captured_activations_that_do_not_fit_are_named(
    tmp_path: Path, payload: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    torch.save({**payload, **changes}, tmp_path / "input.pt")
    with pytest.raises(BadUsage, match=message):
        taken(replace(TINY_OPTIONS, input=tmp_path))


def test_incomplete_or_unreadable_captures_are_named(
    tmp_path: Path, payload: dict[str, Any]
) -> None:
    del payload["segments"]
    torch.save(payload, tmp_path / "input.pt")
    with pytest.raises(BadUsage, match="no segments"):
        taken(replace(TINY_OPTIONS, input=tmp_path))
    with pytest.raises(EnvironmentLacking, match="no such file"):
        taken(replace(TINY_OPTIONS, input=tmp_path / "other.pt"))
    (tmp_path / "cut.pt").write_bytes((tmp_path / "input.pt").read_bytes()[:200])
    with pytest.raises(BadUsage, match=r"cut\.pt"):
        taken(replace(TINY_OPTIONS, input=tmp_path / "cut.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(BadUsage, match="holds a list"):
        taken(replace(TINY_OPTIONS, input=tmp_path / "list.pt"))
