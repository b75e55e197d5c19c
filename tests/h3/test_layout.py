"""Token counts, order and coordinates of the packed sequence."""

from __future__ import annotations

import pytest
import torch

from kclab.core.errors import BadUsage
from kclab.h3.layout import Layout, Segment, align_frames
from kclab.h3.sizes import AUDIO_TAG, TEXT_TAG, VIDEO_TAG


def test_the_canonical_request_has_37810_tokens() -> None:
    layout = Layout.of(1344, 768, 124, 100)
    assert layout.tokens == 37_810
    assert layout.segments == (
        Segment(0, 100, TEXT_TAG),
        Segment(100, 514, AUDIO_TAG),
        Segment(514, 37_810, VIDEO_TAG),
    )
    assert layout.video_grid == (37, 48, 84)
    assert layout.audio_latents == 207


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 5), (5, 5), (6, 22), (22, 22), (121, 124), (124, 124)]
)
def test_frames_are_aligned_up(asked: int, made: int) -> None:
    assert align_frames(asked) == made
    assert made % 17 == 5


@pytest.mark.parametrize("size", [(1350, 768), (1344, 760), (0, 768), (16, 32)])
def test_sizes_that_make_no_whole_tokens_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(BadUsage, match="multiples of 32"):
        Layout.of(*size, 124, 100)


def test_a_request_without_text_or_frames_is_refused() -> None:
    with pytest.raises(BadUsage, match="text tokens"):
        Layout.of(64, 64, 5, 0)
    with pytest.raises(BadUsage, match="frames"):
        Layout.of(64, 64, 0, 1)


@pytest.mark.parametrize("size", [(1344, 768, 124, 100), (96, 64, 22, 7), (64, 128, 5, 3)])
def test_coordinates_are_those_of_diffusers_pipeline(size: tuple[int, int, int, int]) -> None:
    from diffusers.modular_pipelines.minimax_h3 import before_denoise

    layout = Layout.of(*size)
    positions, tags, *_ = before_denoise.MiniMaxH3PrepareLayoutStep.build_packed_sequence(
        torch.full((layout.text,), TEXT_TAG),
        *layout.video_grid,
        layout.audio_latents,
        (1, 2, 2),
        2,
        AUDIO_TAG,
        VIDEO_TAG,
    )
    torch.testing.assert_close(layout.positions(), positions, rtol=1e-12, atol=1e-12)
    for segment in layout.segments:
        assert tags[segment.start : segment.stop].eq(segment.tag).all()
