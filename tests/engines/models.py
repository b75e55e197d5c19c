"""Tiny models with random weights, written locally: `python models.py KIND FOLDER`.

They are the engines' real architectures at small sizes: Qwen-Image-2.1 with all its parts, a dense
Qwen3, Qwen3-Next with both its kinds of attention, DeepSeek-V3 with latent attention and experts.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>{%- endif -%}
{%- endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
SIGMAS = [1.0, 0.75, 0.5, 0.25]
HIDDEN_TEXT = 64
CHANNELS = 16


def tokenizer() -> Any:
    """One token a byte, and the special ones."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: number for number, word in enumerate([*letters, *SPECIAL])}
    plain = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[word for word in SPECIAL if word not in _ENDS],
        chat_template=CHAT_TEMPLATE,
    )
    for name in ("image", "video"):
        setattr(made, f"{name}_token", f"<|{name}_pad|>")
    for name in ("vision_start", "vision_end"):
        setattr(made, f"{name}_token", f"<|{name}|>")
    return made


_ENDS = ("<|im_end|>", "<|endoftext|>")


def rounded(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // 64) * 64


def write_qwen3(folder: Path) -> None:
    """A dense language model of two layers."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    words = tokenizer()
    config = Qwen3Config(
        vocab_size=rounded(len(words)),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    words.save_pretrained(folder)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_qwen3_next(folder: Path) -> None:
    """Three layers of the gated delta rule and one of attention, with experts."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    words = tokenizer()
    config = Qwen3NextConfig(
        vocab_size=rounded(len(words)),
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    words.save_pretrained(folder)
    model = Qwen3NextForCausalLM(config)
    # Otherwise values are so small that zeros would pass for them.
    _scale(model, {"in_proj_qkvz.weight": 0.5, "embed_tokens.weight": 1.0})
    model.to(torch.bfloat16).save_pretrained(folder)
    # SGLang reads it, and transformers does not write it.
    _complete(folder / "config.json", full_attention_interval=4)


def write_deepseek_v3(folder: Path) -> None:
    """Three layers of latent attention, two of them with experts in two groups."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    words = tokenizer()
    config = DeepseekV3Config(
        vocab_size=rounded(len(words)),
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=64,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        max_position_embeddings=2048,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    words.save_pretrained(folder)
    model = DeepseekV3ForCausalLM(config)
    # SGLang's CPU path rounds scores to bfloat16, where close ones would become equal.
    _scale(model, {"mlp.gate.weight": 0.5, "embed_tokens.weight": 1.0})
    model.to(torch.bfloat16).save_pretrained(folder)
    _complete(folder / "config.json", **DEEPSEEK)


DEEPSEEK = {
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "ep_size": 1,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
"""What SGLang reads of a checkpoint's configuration, and transformers does not write."""


def _scale(model: torch.nn.Module, deviations: Mapping[str, float]) -> None:
    """Random weights with these standard deviations, by the end of their names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for end, deviation in deviations.items():
                if name.endswith(end):
                    parameter.normal_(0, deviation)


def _complete(file: Path, **more: Any) -> None:
    facts = json.loads(file.read_text())
    facts.pop("rope_parameters", None)
    write_json(file, {**facts, **more})


def write_qwen_image(folder: Path) -> None:
    """The whole pipeline: processor, text encoder, transformer of two layers, VAE, scheduler."""
    words = tokenizer()
    _write_processor(folder / "processor", words)
    _write_text_encoder(folder / "text_encoder", words)
    _start_sglang()
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


def _write_processor(folder: Path, words: Any) -> None:
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


def _write_text_encoder(folder: Path, words: Any) -> None:
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


class _ServerArguments:
    """What the constructors of SGLang's layers ask of the server: one GPU, nothing special."""

    attention_backend = "torch_sdpa"

    def __getattr__(self, name: str) -> Any:
        return 1 if name.endswith(("degree", "size")) else None


def _start_sglang() -> None:
    """Let SGLang's own modules be constructed in this process."""
    import os

    from sglang.multimodal_gen.runtime import server_args
    from sglang.multimodal_gen.runtime.distributed import (
        maybe_init_distributed_environment_and_model_parallel,
    )

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    server_args.set_global_server_args(_ServerArguments())
    maybe_init_distributed_environment_and_model_parallel(
        tp_size=1, sp_size=1, distributed_init_method=f"tcp://127.0.0.1:{port}"
    )
    torch.set_default_dtype(torch.bfloat16)


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
    _save(folder, model, TRANSFORMER)


def _write_vae(folder: Path) -> None:
    from sglang.multimodal_gen.configs.models.vaes.qwenimage21 import (
        QwenImage21VAEArchConfig,
        QwenImage21VAEConfig,
    )
    from sglang.multimodal_gen.runtime.models.vaes.autoencoder_kl_qwenimage21 import (
        AutoencoderKLQwenImage21,
    )

    config = QwenImage21VAEConfig(arch_config=QwenImage21VAEArchConfig(**VAE))
    _save(folder, AutoencoderKLQwenImage21(config), VAE)


def _save(folder: Path, model: torch.nn.Module, config: Mapping[str, Any]) -> None:
    write_json(folder / "config.json", {"_class_name": type(model).__name__, **config})
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, its folder included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1))


WRITERS: dict[str, Callable[[Path], None]] = {
    "qwen3": write_qwen3,
    "qwen-image": write_qwen_image,
    "qwen3-next": write_qwen3_next,
    "deepseek-v3": write_deepseek_v3,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
