"""SGLang's diffusion transformers, tiny and random, in one process: `modules.py KIND`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kclab import capture


class Arguments:
    """Stands for the server's arguments: one device, torch's attention, nothing else."""

    attention_backend = "torch_sdpa"

    def __getattr__(self, name: str) -> int | None:
        return 1 if name.endswith(("degree", "size")) else None


def start() -> None:
    """What SGLang's workers set up before they make a model."""
    import sglang.multimodal_gen.runtime.server_args as server_args
    from sglang.multimodal_gen.runtime import distributed

    server_args.set_global_server_args(Arguments())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    distributed.maybe_init_distributed_environment_and_model_parallel(
        tp_size=1, sp_size=1, distributed_init_method=f"tcp://127.0.0.1:{port}"
    )


def filled(module: nn.Module) -> nn.Module:
    """With small random weights; norms keep 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.05)
            else:
                parameter.fill_(1.0)
    return module.eval()


def in_request(call: Callable[[], Any]) -> None:
    """One step of one request, as the engine's worker runs it."""
    from sglang.multimodal_gen.runtime.managers.forward_context import set_forward_context

    with (
        torch.inference_mode(),
        set_forward_context(current_timestep=0, attn_metadata=None),
        capture.request("request"),
    ):
        call()


def minimax_h3() -> None:
    """The MLP of a block, within a step."""
    from sglang.multimodal_gen.configs.models.dits.minimax_h3 import MiniMaxH3DiTArchConfig
    from sglang.multimodal_gen.runtime.models.dits import minimax_h3 as h3

    arch = MiniMaxH3DiTArchConfig(
        hidden_size=256,
        num_attention_heads=2,
        attention_head_dim=128,
        ffn_hidden_size=512,
        num_layers=1,
        time_embed_dim=128,
        adaln_out_features=18 * 256,
    )
    mlp = filled(h3.MiniMaxH3MLP(arch, None, prefix="blocks.0.mlp"))
    attention = filled(h3.MiniMaxH3Attention(arch, None, prefix="blocks.0.attn"))
    x = torch.randn(64, 256)

    def step() -> None:
        with capture.step():
            mlp(x)
            attention(
                x,
                rope_cache=None,
                cu_seqlens=torch.tensor([0, 40, 64], dtype=torch.int32),
                cu_seqlens_host=(0, 40, 64),
                max_seqlen=40,
            )

    in_request(step)


def ltx() -> None:
    """LTX-2's transformer with LTX-2.5's gates, two layers."""
    from sglang.multimodal_gen.configs.models.dits.ltx_2_5 import LTX25ArchConfig, LTX25Config
    from sglang.multimodal_gen.runtime.models.dits import ltx_2

    sizes: Mapping[str, Any] = {
        "num_layers": 1,
        "num_attention_heads": 2,
        "attention_head_dim": 64,
        "cross_attention_dim": 128,
        "audio_num_attention_heads": 2,
        "audio_attention_head_dim": 32,
        "audio_cross_attention_dim": 64,
    }
    arch = LTX25ArchConfig(**sizes)
    config = LTX25Config(arch_config=arch)
    model = filled(ltx_2.LTX2VideoTransformer3DModel(config, hf_config={}))
    in_request(lambda: model(**ltx_inputs(arch)))


def ltx_inputs(arch: Any) -> dict[str, Any]:
    """One step's arguments: 2 frames of 4 x 4, 6 of audio, 5 words."""

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape)

    return {
        "hidden_states": noise(1, 32, arch.in_channels),
        "audio_hidden_states": noise(1, 6, arch.audio_in_channels),
        "encoder_hidden_states": noise(1, 5, arch.cross_attention_dim),
        "audio_encoder_hidden_states": noise(1, 5, arch.audio_cross_attention_dim),
        "timestep": torch.full((1,), 500.0),
        "num_frames": 2,
        "height": 4,
        "width": 4,
        "fps": 24.0,
        "audio_num_frames": 6,
    }


if __name__ == "__main__":
    start()
    torch.set_default_dtype(torch.bfloat16)
    {"minimax-h3": minimax_h3, "ltx": ltx}[sys.argv[1]]()
