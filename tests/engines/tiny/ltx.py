"""LTX-2.5 with all its parts: text encoder, connectors, transformer, both VAEs, vocoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny.parts import rounded, save, start_sglang, tokenizer, write_json

TEXT_HIDDEN, TEXT_LAYERS = 64, 2
VIDEO_HEADS, VIDEO_HEAD = 2, 64
AUDIO_HEADS, AUDIO_HEAD = 2, 32
VIDEO_HIDDEN, AUDIO_HIDDEN = VIDEO_HEADS * VIDEO_HEAD, AUDIO_HEADS * AUDIO_HEAD
VIDEO_CHANNELS = 128
"""Of a latent; SGLang's pipeline takes no other number."""
MEL_BINS, AUDIO_CHANNELS = 64, 2
AUDIO_TOKEN = AUDIO_CHANNELS * MEL_BINS // 4
"""Numbers in a latent of sound: channels, and bins compressed four times."""

PIPELINE = {
    "_class_name": "LTX2Pipeline",
    "_diffusers_version": "0.37.0",  # SGLang knows diffusion models by it
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "text_encoder": ["transformers", "Gemma4UnifiedForConditionalGeneration"],
    "connectors": ["ltx2", "LTX2TextConnectors"],
    "transformer": ["diffusers", "LTX2VideoTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLLTX2Video"],
    "audio_vae": ["diffusers", "AutoencoderKLLTX2Audio"],
    "vocoder": ["ltx2", "LTX2VocoderWithBWE"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
}
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": False,
}
CONNECTORS = {
    "caption_channels": TEXT_HIDDEN,
    "text_proj_in_factor": TEXT_LAYERS + 1,
    "per_modality_projections": True,
    "video_hidden_dim": VIDEO_HIDDEN,
    "audio_hidden_dim": AUDIO_HIDDEN,
    "video_gated_attn": True,
    "audio_gated_attn": True,
    "video_connector_num_layers": 1,
    "video_connector_num_attention_heads": VIDEO_HEADS,
    "video_connector_attention_head_dim": VIDEO_HEAD,
    "audio_connector_num_layers": 1,
    "audio_connector_num_attention_heads": AUDIO_HEADS,
    "audio_connector_attention_head_dim": AUDIO_HEAD,
}
TRANSFORMER = {
    "num_layers": 2,
    "in_channels": VIDEO_CHANNELS,
    "out_channels": VIDEO_CHANNELS,
    "num_attention_heads": VIDEO_HEADS,
    "attention_head_dim": VIDEO_HEAD,
    "cross_attention_dim": VIDEO_HIDDEN,
    "caption_channels": TEXT_HIDDEN,
    "audio_in_channels": AUDIO_TOKEN,
    "audio_out_channels": AUDIO_TOKEN,
    "audio_num_attention_heads": AUDIO_HEADS,
    "audio_attention_head_dim": AUDIO_HEAD,
    "audio_cross_attention_dim": AUDIO_HIDDEN,
    "patch_size": 1,
}
VAE = {
    "latent_channels": VIDEO_CHANNELS,
    "block_out_channels": [8, 16, 32, 32],
    "layers_per_block": [1, 1, 1, 1, 1],
    "decoder_block_out_channels": [8, 16, 16, 32],
    "decoder_layers_per_block": [1, 1, 1, 1, 1],
    "scaling_factor": 1.0,
}
AUDIO_VAE = {
    "base_channels": AUDIO_TOKEN,
    "latent_channels": AUDIO_CHANNELS,
    "in_channels": 2,
    "output_channels": 2,
    "ch_mult": [1, 1, 1],
    "num_res_blocks": 1,
    "resolution": 64,
    "mel_bins": MEL_BINS,
}
RESNETS = {"resnet_kernel_sizes": [3], "resnet_dilations": [[1, 3, 5]]}
VOCODER = {
    "act_fn": "snakebeta",
    "hidden_channels": 64,
    "upsample_factors": [5, 2, 2, 2, 2, 2],
    "upsample_kernel_sizes": [11, 4, 4, 4, 4, 4],
    **RESNETS,
    "input_sampling_rate": 16000,
    "output_sampling_rate": 48000,
    "bwe_act_fn": "snakebeta",
    "bwe_hidden_channels": 32,
    "bwe_upsample_factors": [6, 5, 2, 2, 2],
    "bwe_upsample_kernel_sizes": [12, 11, 4, 4, 4],
    **{f"bwe_{name}": value for name, value in RESNETS.items()},
}


def write_ltx(folder: Path) -> None:
    """The whole pipeline, with two blocks in its transformer."""
    words = tokenizer()
    words.save_pretrained(folder / "tokenizer")
    _write_text_encoder(folder / "text_encoder", words)
    start_sglang()
    _write_transformer(folder / "transformer")
    _write_connectors(folder / "connectors")
    _write_vaes(folder)
    _write_vocoder(folder / "vocoder")
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    write_json(folder / "model_index.json", PIPELINE)


def _write_text_encoder(folder: Path, words: Any) -> None:
    from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

    text = {
        "vocab_size": rounded(len(words)),
        "hidden_size": TEXT_HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": TEXT_LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 4096,
        "pad_token_id": words.pad_token_id,
        "eos_token_id": words.eos_token_id,
        "bos_token_id": None,
    }
    config = Gemma4UnifiedConfig(text_config=text)
    Gemma4UnifiedForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)


def _write_transformer(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.dits.ltx_2_5 import LTX25Config
    from sglang.multimodal_gen.runtime.models.dits.ltx_2 import LTX2VideoTransformer3DModel

    config = _configured(LTX25Config(), TRANSFORMER)
    model = LTX2VideoTransformer3DModel(config, hf_config=dict(TRANSFORMER))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0, 0.1)
    save(folder, model, TRANSFORMER)


def _write_connectors(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.adapter.ltx_2_connector import LTX2ConnectorConfig
    from sglang.multimodal_gen.runtime.models.adapter.ltx_2_connector import LTX2TextConnectors

    model = LTX2TextConnectors(_configured(LTX2ConnectorConfig(), CONNECTORS))
    save(folder, model, CONNECTORS)


def _write_vaes(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vaes.ltx_2_5_video import LTX25VideoVAEConfig
    from sglang.multimodal_gen.configs.models.vaes.ltx_audio import LTXAudioVAEConfig
    from sglang.multimodal_gen.runtime.models.vaes.ltx_2_audio import AutoencoderKLLTX2Audio
    from sglang.multimodal_gen.runtime.models.vaes.ltx_2_vae import AutoencoderKLLTX2Video

    video = AutoencoderKLLTX2Video(_configured(LTX25VideoVAEConfig(), VAE))
    audio = AutoencoderKLLTX2Audio(_configured(LTXAudioVAEConfig(), AUDIO_VAE))
    save(folder / "vae", video, VAE)
    save(folder / "audio_vae", audio, AUDIO_VAE)


def _write_vocoder(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vocoder.ltx_vocoder import LTXVocoderConfig
    from sglang.multimodal_gen.runtime.models.vocoder.ltx_2_vocoder import LTX2Vocoder

    model = LTX2Vocoder(_configured(LTXVocoderConfig(), VOCODER))
    save(folder, model, {**VOCODER, "_class_name": "LTX2VocoderWithBWE"})


def _configured(config: Any, values: Mapping[str, Any]) -> Any:
    """The configuration as SGLang makes it of a component's file."""
    config.update_model_arch(dict(values))
    return config
