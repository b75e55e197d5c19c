"""Language models: a dense Qwen3, Qwen3-Next with both its attentions, DeepSeek-V3 with experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny.parts import rounded, tokenizer, write_json


def _about(words: Any) -> dict[str, Any]:
    """What a model's configuration says of its tokenizer."""
    return {
        "vocab_size": rounded(len(words)),
        "max_position_embeddings": 2048,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "bos_token_id": None,
    }


def write_qwen3(folder: Path) -> None:
    """A dense language model of two layers."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    words = tokenizer()
    config = Qwen3Config(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        **_about(words),
    )
    words.save_pretrained(folder)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def write_qwen3_next(folder: Path) -> None:
    """Three layers of the gated delta rule and one of attention, with experts."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    words = tokenizer()
    config = Qwen3NextConfig(
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        **_about(words),
    )
    words.save_pretrained(folder)
    model = Qwen3NextForCausalLM(config)
    # Otherwise values are so small that zeros would pass for them.
    redraw(model, {"in_proj_qkvz.weight": 0.5, "embed_tokens.weight": 1.0})
    model.to(torch.bfloat16).save_pretrained(folder)
    # SGLang reads it, and transformers does not write it.
    _complete(folder / "config.json", full_attention_interval=4)


def write_deepseek_v3(folder: Path) -> None:
    """Three layers of latent attention, two of them with experts in two groups."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    words = tokenizer()
    config = DeepseekV3Config(
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
        **_about(words),
    )
    words.save_pretrained(folder)
    model = DeepseekV3ForCausalLM(config)
    # SGLang's CPU path rounds scores to bfloat16, where close ones would become equal.
    redraw(model, {"mlp.gate.weight": 0.5, "embed_tokens.weight": 1.0})
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


def redraw(model: torch.nn.Module, deviations: Mapping[str, float]) -> None:
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
