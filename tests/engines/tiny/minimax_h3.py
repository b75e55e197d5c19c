"""MiniMax-H3 with all its parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny.parts import save, start_sglang, tokenizer, write_json
from tiny.qwen_image import HIDDEN_TEXT, write_processor, write_text_encoder

WIDTH = 256
PROJECTION = "projection"
"""From what a text encoder says that is smaller than the released one to what the transformer
reads. The server has to be told of it: `--component-paths.conditioning_projection FOLDER`."""


def write_minimax_h3(folder: Path) -> None:
    """The release's part for text to video and keyframes, in a folder of its own as there.

    Processor, tokenizer, text encoder, transformer of two layers, VAEs of video and of sound.
    """
    words, part = tokenizer(), folder / "FL2VA"
    words.save_pretrained(part / "tokenizer")
    write_processor(part / "processor", words)
    write_text_encoder(part / "text_encoder", words)
    _write_projection(folder / PROJECTION)
    start_sglang()
    _write_transformer(part / "transformer")
    torch.set_default_dtype(torch.float32)
    _write_video_vae(part / "video_vae")
    _write_audio_vae(part / "audio_vae")
    write_json(part / "model_index.json", PIPELINE)


PIPELINE = {
    "_class_name": "MiniMaxH3Pipeline",
    "_diffusers_version": "0.37.0",
    "_minimax_h3": {
        "schema_version": 1,
        "partition": "fl2va",
        "tasks": ["t2va", "fl2va"],
        "sigma_shift_scales": {"video": 12.0, "audio": 3.0},
    },
    "processor": ["transformers", "Qwen3VLProcessor"],
    "tokenizer": ["transformers", "Qwen2TokenizerFast"],
    "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
    "transformer": ["diffusers", "MiniMaxH3DiTModel"],
    "video_vae": ["diffusers", "MiniMaxH3VideoVAE"],
    "audio_vae": ["diffusers", "MiniMaxH3AudioVAE"],
    "scheduler": [None, None],
}
TRANSFORMER = {
    "num_layers": 2,
    "token_refiner_num_layers": 1,
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "attention_head_dim": 128,
    "ffn_hidden_size": 2 * WIDTH,
    "text_dim": 5120,
    "timestep_input_dim": 64,
    "time_embed_hidden_size": WIDTH,
    "time_embed_dim": WIDTH // 2,
    "adaln_out_features": 18 * WIDTH,
    "final_adaln_out_features": 2 * WIDTH,
}
VIDEO, AUDIO = 24, 32
"""Channels of the latents."""
WEIGHTS = "diffusion_pytorch_model.safetensors"


def _write_projection(folder: Path) -> None:
    width = TRANSFORMER["text_dim"]
    tensors = {
        "mean_in": torch.zeros(HIDDEN_TEXT),
        "std_in": torch.ones(HIDDEN_TEXT),
        "mean_out": torch.zeros(width),
        "std_out": torch.ones(width),
        "W": torch.randn(HIDDEN_TEXT, width) / HIDDEN_TEXT**0.5,
    }
    folder.mkdir()
    save_file(tensors, folder / "projection.safetensors", metadata={"tap": "2"})


def _write_transformer(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.dits.minimax_h3 import (
        MiniMaxH3DiTArchConfig,
        MiniMaxH3DiTConfig,
    )
    from sglang.multimodal_gen.runtime.models.dits.minimax_h3 import MiniMaxH3DiTModel

    config = MiniMaxH3DiTConfig(arch_config=MiniMaxH3DiTArchConfig(**TRANSFORMER))
    model = MiniMaxH3DiTModel(config, hf_config=dict(TRANSFORMER))
    _fill(model)
    frequencies = model.rope.inv_freq
    frequencies.copy_(10_000 ** (-torch.arange(len(frequencies)) / len(frequencies)))
    save(folder, model, TRANSFORMER)


def _fill(model: torch.nn.Module) -> None:
    """Random weights that keep activations near 1; norms have 1, biases 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _write_video_vae(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vaes.minimax_h3_video import MiniMaxH3VideoVAEConfig
    from sglang.multimodal_gen.runtime.models.vaes.minimax_h3 import MiniMaxH3VideoVAE

    save(folder, MiniMaxH3VideoVAE(MiniMaxH3VideoVAEConfig()), _latents(VIDEO))
    # SGLang looks for weights in each part's own folder, and then reads this part's from below.
    (folder / "source").mkdir()
    shutil.copy(folder / WEIGHTS, folder / "source" / "model.safetensors")


def _write_audio_vae(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vaes.minimax_h3_audio import MiniMaxH3AudioVAEConfig
    from sglang.multimodal_gen.runtime.models.vaes.minimax_h3 import MiniMaxH3AudioVAE

    save(folder, MiniMaxH3AudioVAE(MiniMaxH3AudioVAEConfig()), _latents(AUDIO))


def _latents(channels: int) -> dict[str, Any]:
    means, deviations = [0.0] * channels, [1.0] * channels
    return {"latent_channels": channels, "latents_mean": means, "latents_std": deviations}
