"""The assembled denoiser against diffusers' own, and what its random weights depend on."""

from __future__ import annotations

import pytest
import torch

from kclab.core.errors import BadUsage
from kclab.h3.model import Denoiser, random_denoiser, run_block
from kclab.h3.packing import (
    audio_latents,
    audio_tokens,
    random_latents,
    times_and_segments,
    video_latents,
    video_tokens,
)
from kclab.h3.parts import diffusers_h3, use_attention
from kclab.h3.sampler import Latents
from kclab.h3.sigmas import model_time
from kclab.h3.sizes import TINY, Sizes
from kclab.h3.weights import random_block
from tests.h3.conftest import LAYOUT

CHANNELS = (TINY.video_channels, TINY.audio_channels)


def swap_halves(weight: torch.Tensor) -> torch.Tensor:
    """fc1 with its gate second, as diffusers' SwiGLU wants it."""
    gate, up = weight.chunk(2)
    return torch.cat([up, gate])


def blocks_for_diffusers(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A block's state as diffusers names and lays it out."""
    found = dict(state)
    query, key, value = found.pop("attn.to_qkv.weight").chunk(3)
    found |= {"attn.to_q.weight": query, "attn.to_k.weight": key, "attn.to_v.weight": value}
    found["ff.net.0.proj.weight"] = swap_halves(found.pop("ff.fc1.weight"))
    found["ff.net.2.weight"] = found.pop("ff.fc2.linear.weight")
    return found


def whole_for_diffusers(model: Denoiser) -> torch.nn.Module:
    """diffusers' MiniMaxH3Transformer3DModel with a model's weights."""
    sizes, ends = model.sizes, model.ends
    other = (
        diffusers_h3()
        .MiniMaxH3Transformer3DModel(
            num_attention_heads=sizes.heads,
            attention_head_dim=sizes.head_dim,
            hidden_size=sizes.hidden,
            num_layers=sizes.layers,
            num_refiner_layers=sizes.refiner_layers,
            ffn_dim=sizes.ffn,
            in_channels=sizes.video_channels,
            audio_in_channels=sizes.audio_channels,
            text_dim=sizes.text_dim,
            freq_dim=sizes.freq_dim,
            time_embed_hidden_dim=sizes.time_hidden,
            time_embed_dim=sizes.time_dim,
            rope_freq_dim=sizes.rope_freqs,
        )
        .to(torch.bfloat16)
    )
    for name in ("proj_in", "audio_proj_in", "proj_out", "audio_proj_out", "time_embedder"):
        getattr(other, name).float()
    pairs = {
        "proj_in": ends.video_in,
        "audio_proj_in": ends.audio_in,
        "context_embedder": ends.text_in,
        "time_embedder": ends.time.get_submodule("mlp"),
        "norm_out": ends.norm_out,
        "proj_out": ends.video_out,
        "audio_proj_out": ends.audio_out,
    }
    for name, part in pairs.items():
        getattr(other, name).load_state_dict(part.state_dict())
    refiner = ends.refiner
    for ours, theirs in zip(
        refiner.refiner_blocks, other.token_refiner.refiner_blocks, strict=True
    ):
        theirs.load_state_dict(blocks_for_diffusers(ours.state_dict()))
    other.token_refiner.final_norm.load_state_dict(refiner.final_norm.state_dict())
    for block, theirs in zip(model.blocks, other.transformer_blocks, strict=True):
        theirs.load_state_dict(blocks_for_diffusers(block.state_dict()))
    other.rope = ends.make_rope()
    return other.eval()


@pytest.mark.parametrize("sigma", [1.0, 0.7])
def test_the_whole_model_computes_what_diffusers_does(tiny: Denoiser, sigma: float) -> None:
    latents, generator = random_latents(LAYOUT, CHANNELS, 3)
    text = torch.randn(LAYOUT.text, TINY.text_dim, generator=generator).bfloat16()
    times, segments = times_and_segments(LAYOUT, sigma)
    table_rows = torch.cat([torch.full((s.stop - s.start,), s.row) for s in segments])
    other = whole_for_diffusers(tiny)
    middle = LAYOUT.text + LAYOUT.audio
    with torch.inference_mode():
        ours = tiny.velocity(LAYOUT, text)(latents, sigma)
        video, audio = other(
            video_tokens(latents.video)[None],
            audio_tokens(latents.audio)[None],
            text[None],
            torch.tensor(times),
            table_rows // 3,
            table_rows % 3,
            LAYOUT.positions(),
            torch.arange(middle, LAYOUT.tokens),
            torch.arange(LAYOUT.text, middle),
            torch.arange(LAYOUT.text),
            return_dict=False,
        )
    torch.testing.assert_close(video_tokens(-ours.video), video[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(audio_tokens(-ours.audio), audio[0], rtol=0.02, atol=0.02)


def test_at_the_first_step_there_is_one_time_and_later_two() -> None:
    times, segments = times_and_segments(LAYOUT, 1.0)
    assert times == (0.0,)
    assert [segment.row for segment in segments] == [1, 2, 0]
    times, segments = times_and_segments(LAYOUT, 0.7)
    assert times[0] == model_time(0.7) < times[1]
    assert [segment.row for segment in segments] == [1, 5, 0]


def test_tokens_become_latents_again() -> None:
    latents, _ = random_latents(LAYOUT, CHANNELS, 1)
    assert torch.equal(video_latents(video_tokens(latents.video), LAYOUT.video_grid), latents.video)
    assert torch.equal(audio_latents(audio_tokens(latents.audio)), latents.audio)
    # Row 1 is the next patch to the right, its features channel by channel.
    assert torch.equal(video_tokens(latents.video)[1], latents.video[:, 0, :2, 2:4].reshape(-1))
    assert torch.equal(audio_tokens(latents.audio)[1], latents.audio[:, 0, 1])


def test_a_block_is_the_same_however_it_comes_to_be(tiny: Denoiser) -> None:
    alone = random_block(TINY, 24, 440420, "cpu")
    for name, weight in tiny.blocks[24].state_dict().items():
        assert torch.equal(alone.state_dict()[name], weight), name
    assert not torch.equal(alone.ff.fc1.weight, random_block(TINY, 24, 1, "cpu").ff.fc1.weight)
    assert not torch.equal(alone.ff.fc1.weight, tiny.blocks[0].state_dict()["ff.fc1.weight"])


def test_blocks_outside_the_kept_ones_are_made_each_time() -> None:
    model = random_denoiser(TINY, 1, "cpu", kept=(0,))
    assert model.blocks[0] is model.blocks[0]
    assert model.blocks[1] is not model.blocks[1]
    with pytest.raises(IndexError, match="block 50 of 50"):
        model.blocks[50]


def test_text_of_the_hidden_width_is_taken_as_refined(tiny: Denoiser) -> None:
    text = torch.randn(3, TINY.hidden).bfloat16()
    assert tiny.refine(text) is text
    with pytest.raises(BadUsage, match="width 7"):
        tiny.refine(torch.zeros(3, 7))


def test_attention_backends_are_chosen_by_diffusers_names(tiny: Denoiser) -> None:
    latents, _ = random_latents(LAYOUT, CHANNELS, 3)
    text = torch.zeros(LAYOUT.text, TINY.hidden).bfloat16()
    other = random_denoiser(TINY, 440420, "cpu", attention="_native_math")
    assert other.blocks[7].attn.processor._attention_backend == "_native_math"
    with torch.inference_mode():
        packed = tiny.pack(LAYOUT, text, latents, 1.0)
        expected = run_block(0, tiny.blocks[0], packed.hidden, tiny.condition(packed))
        found = run_block(0, other.blocks[0], packed.hidden, other.condition(packed))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    with pytest.raises(BadUsage, match=r"'fast': diffusers knows .*native"):
        use_attention(tiny.blocks[0], "fast")


def test_rotating_more_channels_than_a_head_has_is_refused() -> None:
    with pytest.raises(BadUsage, match="96 channels"):
        Sizes(head_dim=64)


def test_latents_combine_linearly() -> None:
    one = Latents(torch.ones(1), torch.full((1,), 2.0))
    two = one.combined(2.0, one, -0.5)
    assert (float(two.video), float(two.audio)) == (1.5, 3.0)
