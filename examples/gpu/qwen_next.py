"""Qwen3-Next-80B's gated delta rule through SGLang's own back-end and Triton kernels.

    kclab capture run --adapter qwen-next --define-missing -- python examples/gpu/qwen_next.py

One layer at the model's real sizes (16 key heads, 32 value heads, heads of 128, a pool of float32
states [slots, 32, 128, 128]): `GDNAttnBackend.forward_extend` on ragged prefills, one of them a
second chunk on top of a state, then `forward_decode` (packed, and once the plain way).
`--small` makes it fit Triton's interpreter.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import sglang_gdn
import torch
from torch import Tensor

from kclab import capture


class Layer(SimpleNamespace):
    """What the back-end reads of `RadixLinearAttention`, with weights as Qwen3-Next makes them."""

    @classmethod
    def random(cls, key_heads: int, value_heads: int, size: int, device: str) -> Layer:
        width = (2 * key_heads + value_heads) * size
        noise = torch.empty(value_heads, device=device).uniform_(1, 16)
        return cls(
            layer_id=0,
            num_q_heads=key_heads, num_k_heads=key_heads, num_v_heads=value_heads,
            head_q_dim=size, head_k_dim=size, head_v_dim=size,
            q_dim=key_heads * size, k_dim=key_heads * size, v_dim=value_heads * size,
            conv_weights=(torch.randn(width, 4, device=device) * 0.5).bfloat16(),
            bias=None, activation="silu",
            A_log=noise.log(), dt_bias=torch.ones(value_heads, device=device).bfloat16() - 3,
        )  # fmt: skip


class Engine:
    """A back-end object with the pool and the metadata that a model runner would give it."""

    def __init__(self, module: Any, layer: Layer, slots: int, device: str) -> None:
        self.layer, self.device = layer, device
        kind = module.LinearAttnKernelBackend.TRITON
        width = layer.q_dim + layer.k_dim + layer.v_dim
        shape = (slots, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
        self.pool = SimpleNamespace(
            conv=[torch.zeros(slots, width, 3, dtype=torch.bfloat16, device=device)],
            temporal=torch.zeros(shape, device=device),
            replayssm_d=None, replayssm_k=None, replayssm_g=None,
        )  # fmt: skip

        class Backend(module.GDNAttnBackend):  # type: ignore[misc, name-defined]  # found at run time
            def __init__(self) -> None:
                """Without the server's arguments."""

            def _track_mamba_state_decode(self, *args: Any, **kwargs: Any) -> None:
                """No prefix cache to keep states for."""

        self.backend = Backend()
        self.backend.kernel_dispatcher = module.GDNKernelDispatcher(kind, kind)
        self.backend.req_to_token_pool = SimpleNamespace(
            mamba2_layer_cache=lambda layer_id: self.pool, mamba_pool=None, size=slots
        )
        self.backend.mis_metadata = None
        self.backend._use_strided_target_verify_qkv = False

    def tokens(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """(mixed_qkv before the convolution, a, b) for `count` tokens."""
        layer, device = self.layer, self.device
        width = layer.q_dim + layer.k_dim + layer.v_dim
        mixed = torch.randn(count, width, device=device).bfloat16()
        gates = [torch.randn(count, layer.num_v_heads, device=device).bfloat16() for _ in "ab"]
        return mixed, gates[0], gates[1]

    def _metadata(self, bounds: list[int], slots: list[int]) -> None:
        self.backend.forward_metadata = SimpleNamespace(
            query_start_loc=torch.tensor(bounds, dtype=torch.int32, device=self.device),
            mamba_cache_indices=torch.tensor(slots, dtype=torch.int32, device=self.device),
            retrieve_next_token=None, retrieve_next_sibling=None, retrieve_parent_token=None,
            has_mamba_track_mask=False, conv_block_table=None,
            state_checkpoint_cu_starts=None, num_state_checkpoints=None,
            state_checkpoint_every_n_tokens=None,
            replayssm_write_pos=None, replayssm_force_flush=None,
        )  # fmt: skip

    def prefill(self, lengths: list[int], slots: list[int], before: int = 0) -> Tensor:
        """[1, tokens, Hv, V]; `before` tokens of each sequence are already in its state."""
        bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        self._metadata(bounds, slots)
        mode = SimpleNamespace(is_target_verify=lambda: False)
        batch = SimpleNamespace(
            forward_mode=mode, extend_seq_lens_cpu=lengths,
            extend_prefix_lens=torch.full((len(lengths),), before, device=self.device),
        )  # fmt: skip
        mixed, a, b = self.tokens(bounds[-1])
        with capture.step():
            return self.backend.forward_extend(self.layer, batch, mixed, a, b)

    def decode(self, slots: list[int]) -> Tensor:
        """[1, batch, Hv, V]."""
        self._metadata(list(range(len(slots) + 1)), slots)
        batch = SimpleNamespace(batch_size=len(slots), mamba_track_mask=None)
        mixed, a, b = self.tokens(len(slots))
        with capture.step():
            return self.backend.forward_decode(self.layer, batch, mixed, a, b)


def timed(name: str, call: Any) -> None:
    torch.cuda.synchronize() if torch.cuda.is_initialized() else None
    began = time.perf_counter()
    out = call()
    torch.cuda.synchronize() if torch.cuda.is_initialized() else None
    spent = (time.perf_counter() - began) * 1e3
    rms = out.float().square().mean().sqrt().item()
    print(f"{name:<34} {tuple(out.shape)!s:<24} rms {rms:.4f}  {spent:9.2f} ms", flush=True)


@torch.inference_mode()
def run(engine: Engine, long: int, ragged: list[int], batch: int, steps: int) -> None:
    with capture.request("prefill"):
        timed("prefill, one sequence", lambda: engine.prefill([long], [1]))
        timed("prefill, ragged", lambda: engine.prefill(ragged, [3, 5, 2][: len(ragged)]))
        timed("prefill, second chunk", lambda: engine.prefill([long // 2], [1], before=long))
    with capture.request("decode"):
        for _ in range(steps):
            timed("decode, packed", lambda: engine.decode([5, 1, 3]))
        slots = list(range(6, 6 + batch))
        for _ in range(2):
            timed(f"decode, packed, {batch} sequences", lambda: engine.decode(slots))
    engine.backend.kernel_dispatcher.supports_packed_decode = False
    with capture.request("decode-unpacked"):
        for _ in range(2):
            timed("decode, plain", lambda: engine.decode([2, 4]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    choices = parser.parse_args()
    torch.manual_seed(7)
    module = sglang_gdn.backend_module()
    small, device = choices.small, choices.device
    layer = Layer.random(2 if small else 16, 4 if small else 32, 128, device)
    engine = Engine(module, layer, 16 if small else 140, device)
    print(f"{module.__file__}\n{module.TritonGDNKernel.extend.__code__.co_filename}")
    run(engine, *((96, [70, 5], 3, 2) if small else (4096, [1024, 700, 77], 128, 6)))


if __name__ == "__main__":
    main()
