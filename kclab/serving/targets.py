"""What each adapter wraps inside SGLang, and whether the installed release has it.

Sources are read, not imported: importing SGLang takes many seconds, and much of it needs a GPU.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kclab.core.environment import package_version
from kclab.core.machine import Finding, State

ENGINE = "sglang"
DIFFUSION = "sglang.multimodal_gen.runtime"
LAYERS = f"{DIFFUSION}.layers.attention.layer"
SRT = "sglang.srt"
ATTENTION = (f"{SRT}.layers.radix_attention:RadixAttention.forward",)
ROUTING = (f"{SRT}.layers.moe.topk:select_experts",)

TARGETS: dict[str, tuple[str, ...]] = {
    "qwen-image": (
        f"{DIFFUSION}.models.dits.qwen_image21:QwenImage21Transformer2DModel.forward",
        f"{DIFFUSION}.models.dits.qwen_image21:QwenImage21Attention.attend_sample",
        f"{LAYERS}:LocalAttention.forward",
        f"{LAYERS}:USPAttention.forward",
        f"{LAYERS}:USPAttention.forward_with_replicated_kv_prefix",
        "sglang.multimodal_gen.configs.pipeline_configs.qwen_image21:"
        "QwenImage21PipelineConfig.prepare_sigmas",
    ),
    "ltx": (
        f"{DIFFUSION}.models.dits.ltx_2:LTX2VideoTransformer3DModel.forward",
        f"{DIFFUSION}.models.dits.ltx_2:LTX2TransformerBlock.forward",
        f"{DIFFUSION}.models.dits.ltx_2:LTX2Attention.forward",
    ),
    "minimax-h3": (
        f"{DIFFUSION}.models.dits.minimax_h3:MiniMaxH3DiTModel.forward",
        f"{DIFFUSION}.models.dits.minimax_h3:MiniMaxH3MLP.forward",
        f"{DIFFUSION}.models.dits.minimax_h3:_minimax_h3_attention_core_impl",
        f"{DIFFUSION}.layers.linear:UnquantizedLinearMethod.apply",
        f"{DIFFUSION}.layers.quantization.comfy_nvfp4:ComfyNvfp4LinearMethod.apply",
    ),
    "qwen-next": (
        f"{SRT}.models.qwen3_next:Qwen3NextForCausalLM.forward",
        *(
            f"{SRT}.layers.attention.linear.gdn_backend:GDNKernelDispatcher.{name}"
            for name in ("extend", "decode", "packed_decode")
        ),
        *ATTENTION,
        *ROUTING,
    ),
    "deepseek": (
        f"{SRT}.models.deepseek_v2:DeepseekV3ForCausalLM",
        f"{SRT}.models.deepseek_v2:DeepseekV32ForCausalLM",
        f"{SRT}.models.deepseek_v4:DeepseekV4ForCausalLM",
        f"{SRT}.layers.quantization.fp8_utils:triton_w8a8_block_fp8_linear",
        *ATTENTION,
        *ROUTING,
    ),
}
"""Adapter -> `module:Class.method` or `module:function`."""


@dataclass(frozen=True, slots=True)
class Target:
    """One place in the engine that an adapter wraps."""

    module: str
    name: str
    """`Class.method`, `Class` or `function`."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """From `module:Class.method`."""
        module, _, name = text.partition(":")
        return cls(module, name)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def engine_findings() -> Iterator[Finding]:
    """SGLang's version, and for each adapter whether all of its targets are there."""
    version = package_version(ENGINE)
    root = engine_folder()
    if version is None or root is None:
        advice = "pip install 'kclab[sglang]', in an environment of its own"
        yield Finding(ENGINE, "release", State.ABSENT, "not installed here", advice)
        return
    yield Finding(ENGINE, "release", State.OK, f"{version}, {root}")
    for adapter, texts in TARGETS.items():
        yield _adapter_finding(root, version, adapter, [Target.parse(text) for text in texts])


def _adapter_finding(root: Path, version: str, adapter: str, targets: list[Target]) -> Finding:
    missing = [target for target in targets if not has_target(root, target)]
    if missing:
        found = f"{version} lacks {', '.join(map(str, missing))}"
        advice = "install a release that kclab knows: sglang>=0.5.23,<0.6"
        return Finding(ENGINE, adapter, State.BROKEN, found, advice)
    return Finding(ENGINE, adapter, State.OK, f"all {len(targets)} targets are there")


def engine_folder() -> Path | None:
    """Where the engine's package lies; None where it is not installed."""
    spec = importlib.util.find_spec(ENGINE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def has_target(root: Path, target: Target) -> bool:
    """Whether the module's source defines the name. `root` is the engine's package folder."""
    relative = target.module.removeprefix(f"{ENGINE}.").replace(".", "/")
    for file in (root / f"{relative}.py", root / relative / "__init__.py"):
        if file.is_file():
            tree = ast.parse(file.read_text(encoding="utf-8"))
            return _defines(tree, target.name.split("."))
    return False


def _defines(tree: ast.AST, names: list[str]) -> bool:
    for node in ast.iter_child_nodes(tree):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and node.name == names[0]:
            return len(names) == 1 or _defines(node, names[1:])
        if isinstance(node, ast.If | ast.Try) and _defines(node, names):
            return True
    return False
