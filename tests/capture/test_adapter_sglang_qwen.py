"""The qwen-image adapter on SGLang's model: the real one's shape of calls, in three releases."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from kclab import capture
from kclab.capture import context
from kclab.capture.adapters import sglang_qwen_image as adapter
from kclab.capture.tap import Tap
from kclab.core.errors import EnvironmentLacking

from .conftest import MemoryRecorder, Tapped, armed_with_root, replayed

HEADS, SIZE, TARGET = 2, 8, 5
SEGMENTS = ((0, 3, False), (3, 7, True), (7, 9, False))
PROMPT = 9
RELEASES = ("0.5.21", "0.5.22", "0.5.23")


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)


def engine(release: str) -> Any:
    """A module with SGLang's names and way of calling; what does the work is torch."""
    module = ModuleType(f"sglang_{release}")

    class LocalAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None) -> Tensor:
            return sdpa(q, k, v, attn_mask)

    class USPAttention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v)

        def forward_with_replicated_kv_prefix(
            self, q: Tensor, k_prefix: Tensor, v_prefix: Tensor, k_suffix: Tensor, v_suffix: Tensor
        ) -> Tensor:
            return self(q, torch.cat([k_prefix, k_suffix], 1), torch.cat([v_prefix, v_suffix], 1))

    class Base(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.local_attn, self.target_attn = LocalAttention(), USPAttention()
            self.packed = False

        def _attend(self, q: Any, k: Any, v: Any, prefix: Any, segments: Any, cache: Any) -> Any:
            """Up to the target's own attention: (keys, values, prefix output)."""
            if cache:
                return cache["key"], cache["value"], None
            outputs = []
            for start, end, is_image in segments:
                rows, columns = torch.arange(start, end)[:, None], torch.arange(end)[None]
                mask = None if is_image else (columns <= rows)[None, None]
                part = self.local_attn(
                    prefix[:, start:end], prefix[:, :end], prefix[:, :end] * 2, attn_mask=mask
                )
                outputs.append(part)
            cache.update(key=prefix, value=prefix * 2)
            return prefix, prefix * 2, torch.cat(outputs, 1)

        def _target(self, q: Any, kp: Any, vp: Any, k: Any, v: Any, prefix_pad: Any) -> Any:
            joined = torch.cat([kp, k], 1), torch.cat([vp, v], 1)
            if self.packed or prefix_pad is not None:
                if release == "0.5.21":
                    return self.target_attn(q, *joined)
                return self.attend_target(q, *joined, prefix_pad)
            return self.target_attn.forward_with_replicated_kv_prefix(q, kp, vp, k, v)

    class Old(Base):
        def attend_sample(
            self, q, k, v, rope, prefix, prefix_rope, segments, cache, k_out=None, v_out=None
        ):
            kp, vp, prefix_output = self._attend(q, k, v, prefix, segments, cache)
            return self._target(q, kp, vp, k, v, None), prefix_output

    class New(Base):
        def attend_target(self, q, k, v, prefix_pad):
            if prefix_pad is None:
                return self.target_attn(q, k, v)
            rows = prefix_pad.get()
            return sdpa(q, k[:, rows:], v[:, rows:])

    class WithLayout(New):
        def attend_sample(
            self, q, k, v, rope, prefix, layout, cache, k_out=None, v_out=None, prefix_pad=None
        ):
            kp, vp, prefix_output = self._attend(q, k, v, prefix, layout["segments"], cache)
            return self._target(q, kp, vp, k, v, prefix_pad), prefix_output

    class WithBuffer(New):
        def attend_sample(
            self, q, k, v, rope, prefix, layout, cache,
            k_out=None, v_out=None, prefix_pad=None, qkv=None,
        ):  # fmt: skip
            kp, vp, prefix_output = self._attend(q, k, v, prefix, layout["segments"], cache)
            return self._target(q, kp, vp, k, v, prefix_pad), prefix_output

    attention = {"0.5.21": Old, "0.5.22": WithLayout, "0.5.23": WithBuffer}[release]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = attention()

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer_blocks = nn.ModuleList([Block(), Block()])

        def forward(self, samples: list[Any], caches: list[Any], prefix_pad: Any = None) -> Any:
            results = []
            for index, block in enumerate(self.transformer_blocks):
                for (q, prefix), cache in zip(samples, caches, strict=True):
                    where = (None, SEGMENTS) if release == "0.5.21" else (layout,)
                    more = {} if prefix_pad is None else {"prefix_pad": prefix_pad}
                    results.append(
                        block.attn.attend_sample(
                            q, q + 1, q + 2, None, prefix, *where, cache[index], **more
                        )
                    )
            return results

    layout = {"segments": SEGMENTS}
    attention.__name__ = attention.__qualname__ = adapter.ATTENTION
    Transformer.__name__ = Transformer.__qualname__ = adapter.MODEL
    module.QwenImage21Attention = attention  # type: ignore[attr-defined]
    module.QwenImage21Transformer2DModel = Transformer  # type: ignore[attr-defined]
    module.LocalAttention, module.USPAttention = LocalAttention, USPAttention  # type: ignore[attr-defined]
    module.get_sp_world_size = lambda: 1  # type: ignore[attr-defined]
    return module


def samples(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    return [
        (torch.randn(1, TARGET, HEADS, SIZE), torch.randn(1, PROMPT, HEADS, SIZE))
        for _ in range(count)
    ]


def armed(tapped: Tapped, module: Any) -> MemoryRecorder:
    return armed_with_root(tapped, adapter, module)


def run(module: Any, count: int = 1, steps: int = 2, packed: bool = False, **more: Any) -> Any:
    model = module.QwenImage21Transformer2DModel()
    for block in model.transformer_blocks:
        block.attn.packed = packed
    caches: list[Any] = [[{}, {}] for _ in range(count)]
    given = samples(count)
    with capture.request("r"), torch.no_grad():
        return [model(given, caches, **more) for _ in range(steps)]


@pytest.mark.parametrize("packed", [False, True], ids=["parts", "joined"])
@pytest.mark.parametrize("release", RELEASES)
def test_prompt_and_image_are_captured_in_each_release(
    tapped: Tapped, release: str, packed: bool
) -> None:
    module = engine(release)
    untouched = run(module, packed=packed)
    recorder = armed(tapped, module)
    watched = run(module, packed=packed)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(untouched[1], watched[1], strict=True))
    assert recorder.errors == []
    prefix0, prefixed = (f"prefix_cached_block_causal_fp32_h2_d8{s}" for s in ("_prefix0", ""))
    assert recorder.names() == [prefix0, prefixed, prefixed]
    assert [c.call.step for c in recorder.captures] == [0, 0, 1]
    ids = [-1] * 3 + [0] * 4 + [-1] * 2
    assert recorder.captures[0].inputs["image_ids"].tolist() == ids
    assert recorder.captures[1].inputs["image_ids"].tolist() == ids + [1] * TARGET
    for captured in recorder.captures:
        torch.testing.assert_close(replayed(captured), captured.outputs["O"])


def test_each_sample_of_a_batch_is_captured(tapped: Tapped) -> None:
    module = engine("0.5.23")
    recorder = armed(tapped, module)
    run(module, count=2, steps=1)
    variants = [c.call.variant for c in recorder.captures]
    assert variants == ["sample_0", "sample_0", "sample_1", "sample_1"]
    for captured in recorder.captures:
        torch.testing.assert_close(replayed(captured), captured.outputs["O"])


@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_padded_prefix_is_captured_with_its_valid_keys(tapped: Tapped, release: str) -> None:
    module = engine(release)
    recorder = armed(tapped, module)
    model = module.QwenImage21Transformer2DModel()
    ((q, prefix),) = samples(1)
    cache = {"key": torch.cat([torch.full_like(prefix[:, :2], 9.0), prefix], 1)}
    cache["value"] = cache["key"] * 2
    with capture.request("r"), torch.no_grad():
        model([(q, prefix)], [[cache, cache]], SimpleNamespace(get=lambda: 2))
    (captured,) = recorder.captures
    assert captured.inputs["key_valid"].tolist() == [[False] * 2 + [True] * (PROMPT + TARGET)]
    torch.testing.assert_close(replayed(captured), captured.outputs["O"])


def test_tokens_over_several_devices_are_refused_by_name(tapped: Tapped) -> None:
    module = engine("0.5.23")
    module.get_sp_world_size = lambda: 2
    recorder = armed(tapped, module)
    run(module, steps=1)
    assert recorder.captures == []
    assert recorder.counts[adapter.FAMILY, "tokens split over several devices"] == 2


def test_installing_twice_captures_once(tapped: Tapped) -> None:
    module = engine("0.5.23")
    recorder = armed(tapped, module)
    tap = context._Process.watcher
    assert isinstance(tap, Tap)
    adapter.instrument(module, tap)
    run(module, steps=1)
    assert len(recorder.captures) == 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (None, "QwenImage21Attention"),
        (None, "USPAttention"),
        ("QwenImage21Attention", "attend_sample"),
        ("USPAttention", "forward_with_replicated_kv_prefix"),
    ],
)
def test_release_without_a_target_is_refused_by_its_name(
    tapped: Tapped, owner: str | None, name: str
) -> None:
    module = engine("0.5.23")
    delattr(module if owner is None else getattr(module, owner), name)
    with pytest.raises(EnvironmentLacking, match=f"{name} is not in this release"):
        armed(tapped, module)


def test_release_with_other_arguments_is_refused_by_name(tapped: Tapped) -> None:
    module = engine("0.5.23")
    module.QwenImage21Attention.attend_sample = lambda self, q, k, v: None
    with pytest.raises(EnvironmentLacking, match="neither segments nor layout"):
        armed(tapped, module)


def test_schedule_is_kept_only_where_the_release_needs_it(tapped: Tapped) -> None:
    class Old:
        def prepare_sigmas(self, sigmas: Any, num_inference_steps: int) -> Any:
            return sigmas or "linear"

    class New(Old):
        sample_sigmas = None

    tapped(provenance={"sampling_sigmas": [1.0, 0.5]}, adapters=())
    tap = context._Process.watcher
    assert isinstance(tap, Tap)
    for config in (Old, New):
        module = ModuleType("configs")
        module.QwenImage21PipelineConfig = config  # type: ignore[attr-defined]
        adapter.keep_schedule(module, tap)
    assert Old().prepare_sigmas(None, 2) == [1.0, 0.5]
    assert Old().prepare_sigmas([0.7], 1) == [0.7]
    with pytest.raises(ValueError, match="the checkpoint's schedule has 2"):
        Old().prepare_sigmas(None, 3)
    assert "prepare_sigmas" not in vars(New)
