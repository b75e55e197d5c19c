"""Qwen-Image-2.1 with all its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny.parts import CHAT_TEMPLATE, SPECIAL, rounded, save, start_sglang, tokenizer, write_json

SIGMAS = [1.0, 0.75, 0.5, 0.25]
HIDDEN_TEXT = 64
CHANNELS = 16


def write_qwen_image(folder: Path) -> None:
    """The whole pipeline: processor, text encoder, transformer of two layers, VAE, scheduler."""
    words = tokenizer()
    write_processor(folder / "processor", words)
    write_text_encoder(folder / "text_encoder", words)
    start_sglang()
    _write_transformer(folder / "transformer")
    _write_vae(folder / "vae")
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    write_json(folder / "model_index.json", PIPELINE)


SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "time_shift_type": "exponential",
}
PIPELINE = {
    "_class_name": "QwenImage21Pipeline",
    "_diffusers_version": "0.37.0",  # SGLang knows diffusion models by it
    "processor": ["transformers", "Qwen3VLProcessor"],
    "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
    "transformer": ["diffusers", "QwenImage21Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKLQwenImage21"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "sample_sigmas": SIGMAS,
}
TRANSFORMER = {
    "patch_size": 1,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "num_layers": 2,
    "attention_head_dim": 128,
    "num_attention_heads": 2,
    "context_in_dim": HIDDEN_TEXT,
    "mlp_ratio": 3,
    "axes_dims_rope": [16, 56, 56],
    "eps": 1e-6,
    "causal_condition": True,
    "causal_block": True,
}
VAE = {
    "base_dim": 8,
    "decoder_base_dim": 8,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2, 4, 4, 4],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True, True, True],
    "dropout": 0.0,
    "latents_mean": [0.0] * CHANNELS,
    "latents_std": [1.0] * CHANNELS,
    "is_residual": True,
    "in_channels": 4,
    "out_channels": 4,
    "scale_factor_temporal": 8,
    "scale_factor_spatial": 16,
}


def write_processor(folder: Path, words: Any) -> None:
    """What turns words and images into what the text encoder reads."""
    from transformers import Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, min_pixels=1024, max_pixels=65_536),
        tokenizer=words,
        video_processor=Qwen3VLVideoProcessor(**patches),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)


def write_text_encoder(folder: Path, words: Any) -> None:
    """A Qwen3-VL of two layers, HIDDEN_TEXT wide."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = {word: words.convert_tokens_to_ids(word) for word in SPECIAL}
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5]}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": rounded(len(words)),
            "hidden_size": HIDDEN_TEXT,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {**rope, "mrope_interleaved": True},
            "pad_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": HIDDEN_TEXT,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    Qwen3VLForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)


def _write_transformer(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.dits.qwenimage21 import (
        QwenImage21ArchConfig,
        QwenImage21DitConfig,
    )
    from sglang.multimodal_gen.runtime.models.dits.qwen_image21 import (
        QwenImage21Transformer2DModel,
    )

    config = QwenImage21DitConfig(arch_config=QwenImage21ArchConfig(**TRANSFORMER))
    model = QwenImage21Transformer2DModel(config, hf_config=dict(TRANSFORMER))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
            else:
                parameter.fill_(1.0 if "norm_q" in name or "norm_k" in name else 0.0)
    save(folder, model, TRANSFORMER)


def _write_vae(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vaes.qwenimage21 import (
        QwenImage21VAEArchConfig,
        QwenImage21VAEConfig,
    )
    from sglang.multimodal_gen.runtime.models.vaes.autoencoder_kl_qwenimage21 import (
        AutoencoderKLQwenImage21,
    )

    config = QwenImage21VAEConfig(arch_config=QwenImage21VAEArchConfig(**VAE))
    save(folder, AutoencoderKLQwenImage21(config), VAE)
