"""Models for a served engine on one GPU: released widths, few layers, random weights.

    python examples/gpu/served_models.py qwen-image|qwen3-next|deepseek-v3 FOLDER
    kclab capture serve --model-path FOLDER --case …

They are the engines' tests' tiny models, widened: Qwen-Image-2.1 with 8 blocks of 4096 (32 heads x
128), Qwen3-Next-80B's attentions with 64 experts of 512, DeepSeek-V3's with 128 heads over hidden
7168 and 32 experts, its weights in FP8 by blocks of 128 x 128. Runs in SGLang's environment; on a
machine without a GPU as `make test-engines` has it (SGLANG_USE_CPU_ENGINE=1, TRITON_INTERPRET=1,
PYTHONPATH=tests/engines/shim).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ENGINES = Path(__file__).resolve().parents[2] / "tests" / "engines"
sys.path.insert(0, str(ENGINES))

SIGMAS = [1.0, 0.95, 0.88, 0.8, 0.7, 0.55, 0.4, 0.2]
NEXT = {
    "hidden_size": 2048, "intermediate_size": 5120, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 64,
    "num_experts_per_tok": 10,
}  # fmt: skip
DEEPSEEK = {
    "hidden_size": 7168, "intermediate_size": 2048, "moe_intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_routed_experts": 32, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "q_lora_rank": 1536,
}  # fmt: skip
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}


def qwen_image(folder: Path) -> None:
    from tiny import qwen_image as tiny

    tiny.HIDDEN_TEXT = 4096
    tiny.TRANSFORMER.update(
        num_layers=8, num_attention_heads=32, context_in_dim=4096, in_channels=64, out_channels=64
    )
    wide = {"latents_mean": [0.0] * 64, "latents_std": [1.0] * 64}
    tiny.VAE.update(z_dim=64, base_dim=32, decoder_base_dim=32, **wide)
    tiny.PIPELINE["sample_sigmas"] = SIGMAS
    tiny.write_qwen_image(folder)


def language(folder: Path, write: Any, sizes: dict[str, Any], deviations: dict[str, float]) -> None:
    """The tiny model's tokenizer and configuration, and weights of other sizes."""
    from tiny.language import redraw
    from transformers import AutoConfig, AutoModelForCausalLM

    write(folder)
    file = folder / "config.json"
    told = json.loads(file.read_text())
    config = AutoConfig.from_pretrained(folder)
    config.update(sizes)
    torch.set_default_dtype(torch.bfloat16)
    model = AutoModelForCausalLM.from_config(config)
    redraw(model, deviations)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    model.save_pretrained(folder)
    file.write_text(json.dumps({**json.loads(file.read_text()), **told, **sizes}, indent=1))


def quantise(folder: Path) -> None:
    """Every projection's weight as FP8 with a scale for 128 x 128 values."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in [n for n in tensors if n.endswith(("_proj.weight", "_with_mqa.weight"))]:
            tensors[name], tensors[f"{name}_scale_inv"] = quantised(tensors[name].float())
        save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, K] as float8_e4m3fn, and its scales [N / 128, K / 128] float32."""
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -k % 128, 0, -n % 128))
    blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
    scales = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448
    codes = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:n, :k]
    return codes.to(torch.float8_e4m3fn).contiguous(), scales


def main() -> None:
    from tiny.language import write_deepseek_v3, write_qwen3_next

    kind, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    if kind == "qwen-image":
        qwen_image(folder)
    elif kind == "qwen3-next":
        # Otherwise what the gated delta rule gives is below its tolerance.
        deviations = {"in_proj_qkvz.weight": 0.2, "conv1d.weight": 1.0, "embed_tokens.weight": 1.0}
        language(folder, write_qwen3_next, NEXT, deviations)
    elif kind == "deepseek-v3":
        language(folder, write_deepseek_v3, DEEPSEEK, {"embed_tokens.weight": 1.0})
        quantise(folder)
    else:
        sys.exit(f"{kind}: no such model; there are qwen-image, qwen3-next and deepseek-v3.")


if __name__ == "__main__":
    main()
