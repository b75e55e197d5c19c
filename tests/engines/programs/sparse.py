"""DeepSeek-V3.2's sparse attention in SGLang's own classes, in one process: `sparse.py fused|own`.

SGLang's are the layer, the back-end's two forwards with what turns chosen keys into slots of the
pool, and both pools. Stand-ins: the choice itself (random), the kernel (every key scored, those not
chosen masked), and what writes new keys, which wants a process group.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import dsa_backend
from sglang.srt.layers.attention.dsa.dsa_topk_backend import DSATopKBackend, _topk_unfused
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from torch import Tensor

from kclab import capture

HEADS, CKV, KPE, TOPK = 16, 512, 64, 2048
REQUESTS = (2, 4)
TOTALS = {ForwardMode.EXTEND: ((3, 4), (2300, 900)), ForwardMode.DECODE: ((1, 1), (2304, 905))}
"""Of each request, tokens being computed and all: one has more keys than a query may choose."""
SHARED = 64
"""Tokens of a prefix that both requests have in the same slots."""


class Pool(MLATokenToKVPool):
    """Written by torch."""

    def set_mla_kv_buffer(self, layer: Any, loc: Tensor, nope: Tensor, rope: Tensor) -> None:
        self.kv_buffer[0][loc] = torch.cat([nope, rope], -1).view(-1, 1, CKV + KPE)


class Backend(dsa_backend.DeepseekSparseAttnBackend):
    """Constructed without a server, and with a kernel that any machine has."""

    def __init__(self, fused: bool, pool: Pool, requests: ReqToTokenPool) -> None:
        self.use_fused_topk = fused
        self.dsa_topk_backend = DSATopKBackend.SGL_KERNEL
        self.dsa_prefill_impl = self.dsa_decode_impl = "tilelang"
        self.hisparse_coordinator, self.dsa_index_kpool = None, 1
        self.use_mha = self.dsa_kv_cache_store_fp8 = False
        self.token_to_kv_pool, self.req_to_token_pool = pool, requests
        self.slots: Tensor | None = None

    def _forward_tilelang(
        self,
        q_all: Tensor,
        kv_cache: Tensor,
        page_table_1: Tensor,
        sm_scale: float,
        v_head_dim: int,
    ) -> Tensor:
        self.slots = page_table_1.clone()
        keys = kv_cache.reshape(-1, kv_cache.shape[-1])[:, : CKV + KPE].float()
        out = []
        for query, chosen in zip(q_all.float(), page_table_1, strict=True):
            others = torch.ones(len(keys), dtype=torch.bool)
            others[chosen[chosen >= 0].long()] = False
            scores = (query @ keys.T * sm_scale).masked_fill(others, float("-inf"))
            out.append(torch.softmax(scores, -1) @ keys[:, :v_head_dim])
        return torch.stack(out).to(q_all.dtype)


def pools() -> tuple[Pool, ReqToTokenPool]:
    """Random keys, and two requests whose slots lie anywhere."""
    pool = Pool(
        size=4096, page_size=64, dtype=torch.bfloat16, kv_lora_rank=CKV, qk_rope_head_dim=KPE,
        layer_num=1, device="cpu", enable_memory_saver=False, use_dsa=True,
    )  # fmt: skip
    for buffer in pool.kv_buffer:
        buffer.normal_(0, 0.5)
    requests = ReqToTokenPool(size=4, max_context_len=2400, device="cpu", enable_memory_saver=False)
    anywhere = 1 + torch.randperm(4000, dtype=torch.int32)
    first, second = TOTALS[ForwardMode.DECODE][1]
    requests.req_to_token[2, :first] = anywhere[:first]
    requests.req_to_token[4, :second] = anywhere[first : first + second]
    requests.req_to_token[4, :SHARED] = requests.req_to_token[2, :SHARED]
    return pool, requests


def one_step(backend: Backend, mode: ForwardMode) -> None:
    """One forward of both requests."""
    new, totals = TOTALS[mode]
    table = backend.req_to_token_pool.req_to_token
    own, slots, written = [], [], []
    for request, count, total in zip(REQUESTS, new, totals, strict=True):
        lengths = torch.arange(total - count + 1, total + 1, dtype=torch.int32)
        own.append(_topk_unfused(torch.randn(count, total), lengths, TOPK))
        found = table[request][own[-1].clamp(min=0).long()]
        slots.append(torch.where(own[-1] < 0, -1, found).int())
        written.append(table[request, total - count : total])
    batch = SimpleNamespace(
        forward_mode=mode, batch_size=len(REQUESTS), req_pool_indices=torch.tensor(REQUESTS),
        seq_lens=torch.tensor(totals), seq_lens_cpu=torch.tensor(totals), encoder_lens=None,
        extend_seq_lens=torch.tensor(new), extend_seq_lens_cpu=list(new),
        extend_prefix_lens_cpu=[t - n for t, n in zip(totals, new, strict=True)],
        out_cache_loc=torch.cat(written).long(), global_num_token_non_padded_cpu=None,
    )  # fmt: skip
    backend.forward_metadata = SimpleNamespace(
        page_table_1=table[list(REQUESTS)], dsa_extend_seq_lens_list=list(new), cu_seqlens_q=None,
        dsa_cache_seqlens_int32=None,
    )  # fmt: skip
    layer = RadixAttention(
        num_heads=HEADS, head_dim=CKV + KPE, scaling=192**-0.5, num_kv_heads=1, layer_id=0,
        v_head_dim=CKV,
    )  # fmt: skip

    def noise(*shape: int) -> Tensor:
        return torch.randn(sum(new), *shape, dtype=torch.bfloat16)

    k = noise(1, CKV)
    with (
        torch.inference_mode(),
        forward_context(ForwardContext(attn_backend=backend)),
        capture.request(mode.name.lower()),
        capture.step(),
    ):
        layer(
            noise(HEADS, CKV), k, k, batch, q_rope=noise(HEADS, KPE), k_rope=noise(1, KPE),
            topk_indices=torch.cat(slots if backend.use_fused_topk else own),
        )  # fmt: skip
    assert backend.slots is not None and torch.equal(backend.slots.int(), torch.cat(slots))


if __name__ == "__main__":
    torch.manual_seed(0)
    # A kernel that puts two parts of the queries together.
    dsa_backend.concat_mla_absorb_q_general = lambda nope, rope: torch.cat([nope, rope], -1)
    armed = Backend(sys.argv[1] == "fused", *pools())
    for each in TOTALS:
        one_step(armed, each)
