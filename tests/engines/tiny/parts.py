"""What tiny models of several families are made of: a tokenizer, files, SGLang's own modules."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_ENDS = ("<|im_end|>", "<|endoftext|>")
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


def rounded(size: int) -> int:
    """The next multiple of 64."""
    return -(-size // 64) * 64


class _ServerArguments:
    """What the constructors of SGLang's layers ask of the server: one GPU, nothing special."""

    attention_backend = "torch_sdpa"

    def __getattr__(self, name: str) -> Any:
        return 1 if name.endswith(("degree", "size")) else None


def start_sglang() -> None:
    """Let SGLang's own modules be constructed in this process."""
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


def save(folder: Path, model: torch.nn.Module, config: Mapping[str, Any]) -> None:
    """Write a component as diffusers lays it out; the config may name another class."""
    write_json(folder / "config.json", {"_class_name": type(model).__name__, **config})
    weights = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, its folder included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1))
