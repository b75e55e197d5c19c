"""The qwen-image adapter on diffusers' own model: what it captures is what the block attends to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kclab import capture
from kclab.capture import context
from kclab.capture.adapters import qwen_image
from kclab.capture.control import ControlFolder
from kclab.capture.tap import Tap
from kclab.core.errors import EnvironmentLacking

from .conftest import Captured, MemoryRecorder, Tapped, replayed

transformer_module = pytest.importorskip(qwen_image.MODULE)

CHANNELS, TEXT, BATCH = 4, 32, 2
IMAGE, TARGET = (1, 4, 4), (1, 4, 6)
WORDS = 6


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return transformer_module.QwenImage21Transformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=TEXT,
        axes_dims_rope=(4, 6, 6),
    ).eval()


@pytest.fixture
def flex(model: Any) -> Iterator[Any]:
    """The same model with its one-call attention."""
    before = [block.attn.processor for block in model.transformer_blocks]
    for block in model.transformer_blocks:
        block.attn.set_processor(transformer_module.QwenImage21FlexAttnProcessor())
    yield model
    for block, processor in zip(model.transformer_blocks, before, strict=True):
        block.attn.set_processor(processor)


def inputs(image: bool, padded: int) -> dict[str, Any]:
    """One call's arguments: words around an image or alone; `padded` words of sample 1 are not."""
    torch.manual_seed(1)
    slots = 4 if image else 0
    is_image = torch.zeros(BATCH, WORDS + slots + 6, dtype=torch.bool)
    is_image[:, WORDS + slots :] = True
    is_image[:, 3 : 3 + slots] = True
    valid = torch.ones(BATCH, WORDS + slots, dtype=torch.bool)
    valid[1, WORDS + slots - padded :] = False
    latents = 24 + (16 if image else 0)
    return {
        "hidden_states": torch.randn(BATCH, latents, CHANNELS),
        "encoder_hidden_states": torch.randn(BATCH, WORDS + slots, TEXT),
        "encoder_hidden_states_mask": valid if padded else None,
        "timestep": torch.full((BATCH,), 0.5),
        "img_shapes": [[IMAGE, TARGET] if image else [TARGET]] * BATCH,
        "img_mask": is_image,
        "return_dict": False,
    }


def attention_of(recorder: MemoryRecorder) -> list[Captured]:
    assert recorder.errors == []
    return [c for c in recorder.captures if c.name.startswith(qwen_image.FAMILY)]


def run(model: Any, arguments: dict[str, Any], cached: bool, steps: int = 3) -> list[Tensor]:
    cache = transformer_module.QwenImage21KVCache(2) if cached else None
    results = []
    with torch.no_grad(), capture.request("r"):
        for step in range(steps):
            mode = None if cache is None else "cached" if step else "extract"
            results.append(model(**arguments, kv_cache=cache, kv_cache_mode=mode)[0])
    return results


@pytest.mark.parametrize("padded", [0, 2], ids=["whole prompts", "padded prompts"])
@pytest.mark.parametrize("image", [False, True], ids=["text", "edit"])
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
def test_attention_is_captured_in_every_cache_mode(
    tapped: Tapped, model: Any, cached: bool, image: bool, padded: int
) -> None:
    arguments = inputs(image, padded)
    untouched = run(model, arguments, cached)
    recorder = tapped(adapters=("qwen-image",))
    watched = run(model, arguments, cached)
    assert all(torch.equal(a, b) for a, b in zip(untouched, watched, strict=True))
    captures = attention_of(recorder)
    prefix0, prefixed = (f"prefix_cached_block_causal_fp32_h2_d16{s}" for s in ("_prefix0", ""))
    assert [c.name for c in captures] == [prefix0] + [prefixed if cached else prefix0] * 2
    assert [c.call.step for c in captures] == [0, 1, 2]
    for captured in captures:
        assert captured.call.module_path == "transformer_blocks.0.attn"
        assert captured.inputs["key_valid"].all() == (padded == 0)
        torch.testing.assert_close(replayed(captured), captured.outputs["O"])


# It warns that nobody compiled it.
@pytest.mark.filterwarnings("ignore:flex_attention called:UserWarning")
def test_flex_attention_gives_the_same_capture(tapped: Tapped, flex: Any) -> None:
    recorder = tapped(adapters=("qwen-image",))
    run(flex, inputs(image=True, padded=2), cached=True, steps=2)
    captures = attention_of(recorder)
    assert [c.call.operation for c in captures] == ["QwenImage21FlexAttnProcessor"] * 2
    for captured in captures:
        torch.testing.assert_close(replayed(captured), captured.outputs["O"])


def test_prefix_is_told_in_segments(tapped: Tapped, model: Any) -> None:
    recorder = tapped(adapters=("qwen-image",))
    run(model, inputs(image=True, padded=0), cached=True, steps=2)
    for captured in attention_of(recorder):
        segments = captured.call.receipt["prefix_segments"]
        assert segments == [(0, 3, False), (3, 19, True), (19, 22, False)]
        assert captured.inputs["image_ids"].tolist() == [-1] * 3 + [0] * 16 + [-1] * 3 + [1] * 24


def test_torch_adapter_sees_the_same_step_too(tapped: Tapped, model: Any) -> None:
    recorder = tapped(adapters=("qwen-image", "torch"), steps=(1,))
    run(model, inputs(image=True, padded=0), cached=True)
    names = set(recorder.names())
    assert {c.call.step for c in recorder.captures} == {1}
    assert "prefix_cached_block_causal_fp32_h2_d16" in names
    assert "dense_gemm_fp32_nt_n96_k32" in names
    assert "sdpa_fp32_h2_kv2_d16" in names


def test_mask_that_does_not_tell_keys_is_refused_by_name(
    tapped: Tapped, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = tapped(adapters=("qwen-image",))
    monkeypatch.setattr(qwen_image.Attention, "_key_valid", lambda *_: None)
    run(model, inputs(image=False, padded=2), cached=False, steps=1)
    assert attention_of(recorder) == []
    refusal = (qwen_image.FAMILY, "padded prefix without a mask of its keys")
    assert recorder.counts[refusal] == 1


def test_installing_twice_captures_once(tapped: Tapped, model: Any) -> None:
    recorder = tapped(adapters=("qwen-image",))
    tap = context._Process.watcher
    assert isinstance(tap, Tap)
    qwen_image.instrument(transformer_module, tap)
    run(model, inputs(image=False, padded=0), cached=False, steps=1)
    assert len(attention_of(recorder)) == 1


def test_release_without_a_target_is_refused_by_its_name(
    tapped: Tapped, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(transformer_module, "_qwenimage21_prepare_qkv")
    control = ControlFolder(tmp_path)
    control.create()
    recorder = tapped(adapters=("qwen-image",))
    (error,) = recorder.errors
    assert isinstance(error, EnvironmentLacking)
    assert "_qwenimage21_prepare_qkv is not in this release" in str(error)
    # The run ends there, instead of passing without its attention.
    (failure,) = control.failures().values()
    assert failure["fatal"] and failure["message"] == str(error)


def test_release_without_the_model_is_refused_by_its_name(tapped: Tapped) -> None:
    tapped()
    tap = context._Process.watcher
    assert isinstance(tap, Tap)
    with pytest.raises(EnvironmentLacking, match=r"other\.QwenImage21Transformer2DModel"):
        qwen_image.instrument(ModuleType("other"), tap)
