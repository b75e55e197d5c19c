"""The `deepseek` adapter: DeepSeek-V3 and its kin in SGLang.

Latent attention in both forms (absorbed over compressed key-values, normal over expanded ones) and
over the keys that V3.2's queries choose, the routing with bias and groups, and the GEMMs over
block-scaled FP8. V4's sparse attention has another form, and is counted.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from kclab.capture.adapters import Handler, Sighting, Uncaptured
from kclab.capture.adapters import sglang_attention as attention
from kclab.capture.adapters.qwen_next import attach_shared
from kclab.capture.adapters.torch_gemm import TAGS
from kclab.capture.adapters.watching import watch_calls
from kclab.core.errors import EnvironmentLacking

if TYPE_CHECKING:
    from kclab.capture.tap import Tap

FP8_MODULE = "sglang.srt.layers.quantization.fp8_utils"
FP8 = "block_scaled_gemm"
FP8_SUFFIXES = ("w8a8_block_fp8_linear", "w8a8_block_fp8_linear_with_fallback")
"""How the functions of all back-ends are called; which one runs is chosen when a model is made."""
BLOCK = (128, 128)
MODELS = tuple(
    f"sglang.srt.models.{module}.{name}"
    for module, name in (
        ("deepseek_v2", "DeepseekV2ForCausalLM"),
        ("deepseek_v2", "DeepseekV3ForCausalLM"),
        ("deepseek_v2", "DeepseekV32ForCausalLM"),
        ("deepseek_v4", "DeepseekV4ForCausalLM"),
    )
)


class DeepSeekAdapter:
    """Latent attention, routing, block-scaled GEMMs; a step is one forward."""

    name = "deepseek"
    families: ClassVar[tuple[str, ...]] = (
        attention.LATENT,
        attention.SPARSE,
        attention.RAGGED,
        "moe_topk_grouped_sigmoid",
        FP8,
    )
    roots: ClassVar[tuple[str, ...]] = MODELS
    handlers: ClassVar[Mapping[str, Handler]] = {}

    def attach(self, tap: Tap) -> None:
        """Wrap SGLang's methods as soon as their modules are there."""
        attach_shared(tap)
        tap.when_imported(FP8_MODULE, lambda module: instrument_fp8(module, tap))


def instrument_fp8(module: Any, tap: Tap) -> None:
    """Wrap every back-end's function; EnvironmentLacking where there is none."""
    names = [name for name in vars(module) if name.endswith(FP8_SUFFIXES) and _is_linear(name)]
    if not names:
        raise EnvironmentLacking(
            f"{module.__name__}.*{FP8_SUFFIXES[0]} is not in this release, and capture needs to "
            "wrap it."
        )
    for name in names:
        watch_calls(tap, module, name, FP8, functools.partial(see_fp8, name))


def _is_linear(name: str) -> bool:
    return not name.startswith(("dispatch_", "_"))


def see_fp8(operation: str, arguments: Mapping[str, Any]) -> Sighting | Uncaptured:
    """`(input, weight, block_size, weight_scale, input_scale, bias)`: input [..., K]."""
    x, weight, scale = (arguments[name] for name in ("input", "weight", "weight_scale"))
    refused = {
        "activation quantised before": arguments.get("input_scale") is not None,
        "with a bias": arguments.get("bias") is not None,
        "blocks of another size": tuple(arguments["block_size"]) != BLOCK,
        f"dtype {str(x.dtype).removeprefix('torch.')}": x.dtype not in TAGS,
        "weight of another dtype": weight.dtype != torch.float8_e4m3fn,
        "packed weight scales": scale.dtype != torch.float32 or scale.dim() != 2,
    }
    reason = next((reason for reason, holds in refused.items() if holds), None)
    if reason is not None:
        return Uncaptured(FP8, reason)
    rows = x.reshape(-1, x.shape[-1])
    n, k = weight.shape
    return Sighting(
        family=FP8,
        sizes={"n": n, "k": k, "dtype": TAGS[x.dtype]},
        inputs={
            "A": rows,
            "W": weight,
            "W_scale": scale,
            "power_of_two_scales": bool(arguments.get("act_scale_ue8m0", False)),
        },
        outputs=lambda result: {"C": result.reshape(-1, n)},
        operation=operation,
        variant=f"rows_{rows.shape[0]}",
    )
