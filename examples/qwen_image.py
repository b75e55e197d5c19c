"""A tiny Qwen-Image-2.1 denoises three images: diffusers' model code, random weights, no download.

Run it alone, or under capture:

    kclab capture run --adapter qwen-image --adapter torch --define-missing -- \
        python examples/qwen_image.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import QwenImage21Transformer2DModel
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache
from torch import Tensor

import kclab.capture

STEPS = 8
CHANNELS, TEXT_SIZE = 16, 128
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Prompt:
    """What a text encoder and an image encoder would hand to the transformer."""

    text: Tensor
    """[batch, tokens, TEXT_SIZE]; an image in the prompt fills one token per 2 x 2 latents."""
    is_image: Tensor
    """[batch, tokens] bool."""
    valid: Tensor | None
    """[batch, tokens] bool, false for padding; None where no prompt is padded."""
    condition: Tensor
    """[batch, latents of the prompt's images, CHANNELS]."""
    shapes: list[Shape]
    """(frames, height, width) of each image in latents, the one to make last."""


def tiny_model() -> QwenImage21Transformer2DModel:
    """Two blocks of four heads x 64 instead of 32 of 32 x 128; nothing else is changed."""
    model = QwenImage21Transformer2DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=2,
        attention_head_dim=64,
        num_attention_heads=4,
        context_in_dim=TEXT_SIZE,
        axes_dims_rope=(8, 28, 28),
    )
    return model.bfloat16().eval()


def written(words: int, padded: int, size: Shape) -> Prompt:
    """Two prompts of text for one image each, the second `padded` tokens shorter."""
    valid = torch.ones(2, words, dtype=torch.bool)
    valid[1, words - padded :] = False
    return Prompt(
        text=torch.randn(2, words, TEXT_SIZE, dtype=torch.bfloat16),
        is_image=torch.zeros(2, words, dtype=torch.bool),
        valid=valid if padded else None,
        condition=torch.zeros(2, 0, CHANNELS, dtype=torch.bfloat16),
        shapes=[size],
    )


def edit(words: int, image: Shape, size: Shape) -> Prompt:
    """Text around an image that is to be changed."""
    latents = image[1] * image[2]
    is_image = torch.zeros(1, words + latents // 4, dtype=torch.bool)
    is_image[:, words // 2 : words // 2 + latents // 4] = True
    return Prompt(
        text=torch.randn(1, is_image.shape[1], TEXT_SIZE, dtype=torch.bfloat16),
        is_image=is_image,
        valid=None,
        condition=torch.randn(1, latents, CHANNELS, dtype=torch.bfloat16),
        shapes=[image, size],
    )


@torch.inference_mode()
def denoise(model: QwenImage21Transformer2DModel, prompt: Prompt, *, cached: bool) -> Tensor:
    """Euler steps from noise to latents [batch, latents, CHANNELS], as diffusers' pipeline does."""
    batch, (_, height, width) = prompt.text.shape[0], prompt.shapes[-1]
    latents = torch.randn(batch, height * width, CHANNELS, dtype=torch.bfloat16)
    slots = torch.ones(batch, height * width // 4, dtype=torch.bool)
    cache = QwenImage21KVCache(len(model.transformer_blocks)) if cached else None
    sigmas = torch.linspace(1, 0, STEPS + 1)
    for step in range(STEPS):
        prediction = model(
            hidden_states=torch.cat([prompt.condition, latents], dim=1),
            encoder_hidden_states=prompt.text,
            encoder_hidden_states_mask=prompt.valid,
            timestep=sigmas[step].expand(batch),
            img_shapes=[prompt.shapes] * batch,
            img_mask=torch.cat([prompt.is_image, slots], dim=1),
            kv_cache=cache,
            kv_cache_mode=None if cache is None else "cached" if step else "extract",
            return_dict=False,
        )[0][:, -latents.shape[1] :]
        latents = latents + (sigmas[step + 1] - sigmas[step]) * prediction
    return latents


def main() -> None:
    """Three requests: text without a cache, an edit with one, two prompts of unequal length."""
    torch.manual_seed(42)
    model = tiny_model()
    requests = {
        "text": (written(12, 0, (1, 8, 8)), False),
        "edit": (edit(10, (1, 8, 8), (1, 8, 12)), True),
        "two-prompts": (written(16, 5, (1, 8, 8)), True),
    }
    for name, (prompt, cached) in requests.items():
        with kclab.capture.request(name, {"num_inference_steps": STEPS, "cached": cached}):
            latents = denoise(model, prompt, cached=cached)
        print(f"{name}: {tuple(latents.shape)}, mean {latents.float().mean().item():+.4f}")


if __name__ == "__main__":
    main()
