"""SGLang's own gated-delta-rule back-end beside a bare torch: `backend_module()`.

SGLang 0.5.23's unmodified source runs: `GDNAttnBackend.forward_extend` and `forward_decode`,
`GDNKernelDispatcher`, `TritonGDNKernel` and the Triton kernels of `sglang.kernels.ops`. Blank (any
name in them is an empty class) are the modules that the back-end imports for annotations and for
its base class, which would bring in the whole server and `sgl_kernel`: the model runner, the batch,
the pools; and packages for serving (HTTP, ZMQ), where they are not installed. No kernel is replaced
but the prefill's causal convolution, which runs before what is captured: it is SGLang's Triton one
instead of the one that nvcc makes at run time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

BLANK = (
    "sglang.srt.configs",
    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
    "sglang.srt.layers.radix_linear_attention",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.model_executor.model_runner",
)
MAYBE = (
    "orjson", "pybase64", "starlette", "zmq", "IPython", "openai", "fastapi", "uvicorn", "gguf",
    "compressed_tensors", "loguru", "dill", "tvm_ffi", "distro", "partial_json_parser", "msgspec_x",
)  # fmt: skip
"""Blank only where they are not installed."""


class Anything(type):
    """Makes classes of which every attribute is a class like them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return make(name)


def make(name: str) -> Any:
    return Anything(name, (), {"__init__": lambda self, *a, **k: None})


class Blank(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = make(name)
        setattr(self, name, made)
        return made


class Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        blank = any(name == b or name.startswith(f"{b}.") for b in BLANK)
        if blank or name.partition(".")[0] in self.lacking:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # duck-typed
        return None

    def __init__(self) -> None:
        self.lacking = {n for n in MAYBE if importlib.util.find_spec(n) is None}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Blank(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def backend_module() -> Any:
    """`sglang.srt.layers.attention.linear.gdn_backend`, as the release has it."""
    spec = importlib.util.find_spec("sglang")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        sys.exit("sglang is not there")
    bare = ModuleType("sglang")  # its own __init__ imports the client API
    bare.__path__ = places
    bare.__spec__ = spec
    bare.__file__ = str(Path(places[0]) / "__init__.py")
    sys.modules["sglang"] = bare
    finder = Finder()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]  # duck-typed
    if finder.lacking:
        print("blank for want of them:", *sorted(finder.lacking), file=sys.stderr)
    os.environ.setdefault("SGLANG_DISABLE_PLUGINS", "1")
    module = importlib.import_module("sglang.srt.layers.attention.linear.gdn_backend")
    triton = importlib.import_module("sglang.kernels.ops.mamba.causal_conv1d_triton")
    module.causal_conv1d_fn = triton.causal_conv1d_fn
    return module
