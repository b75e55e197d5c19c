"""Qwen-Image-2.1's transformer at its real width denoises a 1024 x 1024 image, random weights.

diffusers' own model: hidden 4096 (32 heads x 128), MLP 12288, 4096 image tokens (64 x 64 latents,
the VAE's stride being 16), 256 text tokens; only the number of blocks is cut (they are all alike).
Prints each step's time, and writes them to the file that QWEN_TIMES names. `--small` is for a CPU.

    kclab capture run --adapter qwen-image --adapter torch --define-missing --steps 0,3,6 \
      --root diffusers.models.transformers.transformer_qwenimage21.QwenImage21Transformer2DModel \
      -- python examples/gpu/qwen_image.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from diffusers import QwenImage21Transformer2DModel
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

import kclab.capture


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def build(small: bool, layers: int, device: str) -> QwenImage21Transformer2DModel:
    sizes = dict(num_layers=layers)
    if small:
        sizes |= dict(attention_head_dim=64, num_attention_heads=4, context_in_dim=128,
                      axes_dims_rope=(8, 28, 28), in_channels=16, out_channels=16)  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = QwenImage21Transformer2DModel(**sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model.bfloat16().eval()


@torch.inference_mode()
def denoise(model, steps: int, side: int, words: int, device: str, cached: bool) -> list[float]:
    channels, text = model.config.in_channels, model.config.context_in_dim
    count = side * side
    latents = torch.randn(1, count, channels, device=device).bfloat16()
    prompt = torch.randn(1, words, text, device=device).bfloat16()
    mask = torch.cat([torch.zeros(1, words, dtype=torch.bool),
                      torch.ones(1, count // 4, dtype=torch.bool)], 1).to(device)  # fmt: skip
    cache = QwenImage21KVCache(len(model.transformer_blocks)) if cached else None
    sigmas = torch.linspace(1, 0, steps + 1)
    times = []
    for step in range(steps):
        synchronize(device)
        began = time.perf_counter()
        prediction = model(
            hidden_states=latents,
            encoder_hidden_states=prompt,
            encoder_hidden_states_mask=None,
            timestep=sigmas[step].expand(1).to(device),
            img_shapes=[[(1, side, side)]],
            img_mask=mask,
            kv_cache=cache,
            kv_cache_mode=None if cache is None else "cached" if step else "extract",
            return_dict=False,
        )[0][:, -count:]
        synchronize(device)
        times.append((time.perf_counter() - began) * 1e3)
        latents = latents + (sigmas[step + 1] - sigmas[step]).item() * prediction
    assert torch.isfinite(latents.float()).all()
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--denoise", type=int, default=12)
    parser.add_argument("--layers", type=int, default=4)
    choices = parser.parse_args()
    device, side, words = choices.device, 8 if choices.small else 64, 16 if choices.small else 256
    model = build(choices.small, choices.layers, device)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"{choices.layers} blocks, {size / 2**30:.2f} GiB of weights, {side * side} image tokens")
    with kclab.capture.request("warm-up"):  # of these, only step 0 is among the selected
        denoise(model, 3, side, words, device, True)
    found = {}
    for name, cached in (("cached", True), ("uncached", False)):
        with kclab.capture.request(name, {"num_inference_steps": choices.denoise}):
            found[name] = denoise(model, choices.denoise, side, words, device, cached)
        print(name, "ms a step:", " ".join(f"{t:.1f}" for t in found[name]), flush=True)
    if path := os.environ.get("QWEN_TIMES"):
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
