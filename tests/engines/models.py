"""Tiny models with random weights, written locally: `python models.py KIND FOLDER`.

They are the engines' real architectures at small sizes: Qwen-Image-2.1, LTX-2.5 and MiniMax-H3 with
all their parts, a dense Qwen3, Qwen3-Next with both its kinds of attention, DeepSeek-V3 with latent
attention and experts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from tiny.language import write_deepseek_v3, write_qwen3, write_qwen3_next
from tiny.ltx import write_ltx
from tiny.minimax_h3 import write_minimax_h3
from tiny.qwen_image import write_qwen_image

WRITERS: Mapping[str, Callable[[Path], None]] = {
    "qwen3": write_qwen3,
    "qwen3-next": write_qwen3_next,
    "deepseek-v3": write_deepseek_v3,
    "qwen-image": write_qwen_image,
    "ltx": write_ltx,
    "minimax-h3": write_minimax_h3,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
