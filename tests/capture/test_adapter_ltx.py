"""The ltx adapter on stand-ins of a block: which attention is which, masks, gates, refusals."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from kclab import capture
from kclab.capture.adapters import ltx as adapter
from kclab.core.errors import EnvironmentLacking

from .conftest import MemoryRecorder, Tapped, armed_with_root
from .test_adapter_qwen_next import assert_replays

HEADS, SIZE, TOKENS = 2, 4, 3
WIDTH = HEADS * SIZE


def engine() -> Any:
    module = ModuleType("sglang_ltx")

    class ColumnParallelLinear(nn.Module):
        def __init__(self, n: int, k: int):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(n, k))

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return linear(x, self.weight), None

    class RowParallelLinear(ColumnParallelLinear):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return linear(x, self.weight), None

    class LocalAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None) -> Tensor:
            mask = None if attn_mask is None else attn_mask.bool()[:, None, None]
            heads = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(*heads, mask).transpose(1, 2)

    class USPAttention(LocalAttention):
        skip_sequence_parallel = False

        def forward(self, q, k, v, attn_mask=None, skip_sequence_parallel_override=False):
            return LocalAttention.forward.__wrapped__(self, q, k, v, attn_mask)

    class LTX2Attention(nn.Module):
        def __init__(self, kind: type[nn.Module], gated: bool):
            super().__init__()
            self.attn = kind()
            self.to_gate_logits = ColumnParallelLinear(HEADS, WIDTH) if gated else None
            self.to_out = nn.Sequential(RowParallelLinear(WIDTH, WIDTH))

        def forward(
            self, x, context=None, mask=None, perturbation_mask=None, all_perturbed=False,
            gathered=False,
        ):  # fmt: skip
            other = x if context is None else context
            q, k = (t.unflatten(2, (HEADS, SIZE)) for t in (x, other))
            more = {"skip_sequence_parallel_override": True} if gathered else {}
            out = k if all_perturbed else self.attn(q, k, k * 2, attn_mask=mask, **more)
            if self.to_gate_logits is not None:
                gate = 2 * self.to_gate_logits(x)[0].sigmoid()
                out = out * gate[..., None]
            return self.to_out[0](out.flatten(2))[0]

    class LTX2TransformerBlock(nn.Module):
        def __init__(self, gated: bool):
            super().__init__()
            for name in adapter.NAMES:
                kind = USPAttention if name == "attn1" else LocalAttention
                setattr(self, name, LTX2Attention(kind, gated))

        def forward(self, video: Tensor, audio: Tensor, **more: Any) -> Tensor:
            self.attn1(video, **more), self.attn2(video, audio)
            self.audio_attn1(audio), self.audio_attn2(audio, video)
            return self.audio_to_video_attn(video, audio) + self.video_to_audio_attn(video, audio)

    class Transformer(nn.Module):
        def __init__(self, gated: bool = True):
            super().__init__()
            self.block = LTX2TransformerBlock(gated)

        def forward(self, *args: Any, **more: Any) -> Tensor:
            return self.block(*args, **more)

    Transformer.__name__ = Transformer.__qualname__ = adapter.MODEL
    module.LTX2VideoTransformer3DModel = Transformer  # type: ignore[attr-defined]
    module.get_sp_world_size = lambda: 1  # type: ignore[attr-defined]
    for kind in (
        ColumnParallelLinear, RowParallelLinear, LocalAttention, USPAttention, LTX2Attention,
        LTX2TransformerBlock,
    ):  # fmt: skip
        setattr(module, kind.__name__, kind)
    return module


def armed(tapped: Tapped, module: Any) -> MemoryRecorder:
    return armed_with_root(tapped, adapter, module)


def run(module: Any, gated: bool = True, **more: Any) -> None:
    torch.manual_seed(0)
    model = module.LTX2VideoTransformer3DModel(gated)
    with capture.request("r"), torch.no_grad():
        model(torch.randn(1, TOKENS, WIDTH), torch.randn(1, TOKENS, WIDTH), **more)


def variants(recorder: MemoryRecorder, family: str) -> list[str | None]:
    assert recorder.errors == []
    return [c.call.variant for c in recorder.captures if c.name.startswith(family)]


def test_each_of_the_six_attentions_and_gates_is_captured_by_its_name(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    run(module)
    assert sorted(map(str, variants(recorder, "sdpa"))) == sorted(adapter.NAMES)
    assert sorted(map(str, variants(recorder, "head_gate"))) == sorted(adapter.NAMES)
    for captured in recorder.captures:
        assert_replays(captured)


def test_ungated_attention_has_no_gate(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    run(module, gated=False)
    assert len(variants(recorder, "sdpa")) == 6
    assert variants(recorder, "head_gate") == []


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_mask_of_keys_becomes_the_familys(tapped: Tapped, dtype: torch.dtype) -> None:
    module = engine()
    recorder = armed(tapped, module)
    run(module, mask=torch.tensor([[1, 1, 0]]).to(dtype))
    masked = [c for c in recorder.captures if c.name.endswith("_mask_bool")]
    assert [c.call.variant for c in masked] == ["attn1"]
    assert_replays(masked[0])


def test_perturbed_attention_leaves_its_gate_out_by_name(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    run(module, perturbation_mask=torch.ones(1))
    assert "attn1" in variants(recorder, "sdpa")
    assert "attn1" not in variants(recorder, "head_gate")
    assert recorder.counts["head_gate", "perturbed attention"] == 1


def test_skipped_attention_is_no_capture(tapped: Tapped) -> None:
    module = engine()
    recorder = armed(tapped, module)
    run(module, all_perturbed=True)
    assert "attn1" not in variants(recorder, "sdpa") + variants(recorder, "head_gate")


def test_of_split_tokens_only_attention_that_exchanges_them_is_refused(tapped: Tapped) -> None:
    module = engine()
    module.get_sp_world_size = lambda: 2
    recorder = armed(tapped, module)
    run(module)
    alone = sorted(name for name in adapter.NAMES if name != "attn1")
    assert sorted(map(str, variants(recorder, "sdpa"))) == alone
    assert recorder.counts["sdpa", "tokens split over several devices"] == 1
    assert sorted(map(str, variants(recorder, "head_gate"))) == sorted(adapter.NAMES)
    for captured in recorder.captures:
        assert_replays(captured)


def test_keys_that_were_gathered_before_make_attention_whole(tapped: Tapped) -> None:
    module = engine()
    module.get_sp_world_size = lambda: 2
    recorder = armed(tapped, module)
    run(module, gathered=True)
    assert sorted(map(str, variants(recorder, "sdpa"))) == sorted(adapter.NAMES)


@pytest.mark.parametrize(
    "name", ["LTX2TransformerBlock", "LTX2Attention", "USPAttention", "RowParallelLinear"]
)
def test_release_without_a_target_is_refused_by_its_name(tapped: Tapped, name: str) -> None:
    module = engine()
    delattr(module, name)
    with pytest.raises(EnvironmentLacking, match=f"{name} is not in this release"):
        armed(tapped, module)
