"""Linear layers of a dumped forward: activations from the dump, weights from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from kclab.core.families import FAMILIES
from kclab.dataset.dumps.call import DumpedCall, Skipped, tag_of
from kclab.dataset.dumps.tensor_files import Checkpoint


def linear_call(
    module: str, given: Tensor, output: Tensor, checkpoint: Checkpoint, step: int, facts: Any
) -> DumpedCall | None:
    """The call of a linear; None for a module that is none. Raises Skipped, naming the module."""
    weight = checkpoint.parameter(module, "weight")
    if weight is None or weight.dim() != 2 or not given.is_floating_point():
        return None
    (n, k), tag = weight.shape, tag_of(given, module)
    if weight.dtype != given.dtype or output.dtype != given.dtype:
        raise Skipped(f"{module}: weight, input and output are not of one dtype")
    if (given.shape[-1], output.shape[-1]) != (k, n):
        raise Skipped(f"{module}: its tensors are parts of the checkpoint's (tensor parallel)")
    bias = checkpoint.parameter(module, "bias")
    inputs = {"A": given.reshape(-1, k), "W": weight}
    if bias is not None:
        inputs["bias"] = bias
    return DumpedCall(
        FAMILIES["dense_gemm"].make(n=n, k=k, dtype=tag, bias=bias is not None),
        inputs,
        {"C": output.reshape(-1, n)},
        "linear",
        step,
        {**facts, "module_path": module, "variant": f"rows_{given.numel() // k}"},
    )


PRODUCERS = {
    "o_proj": ("attn",),
    "down_proj": ("act_fn",),
    "qkv_proj": ("..", "input_layernorm"),
    "gate_up_proj": ("..", "post_attention_layernorm"),
    "gate": ("..", "post_attention_layernorm"),
}
"""Whose output a linear takes, beside it (`..`: one level up): a pass holds outputs only."""


def inputs_of_pass(outputs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(module, its input, its output) for each linear whose producer is in the pass too."""
    for module, output in outputs.items():
        head, _, last = module.rpartition(".")
        producer = PRODUCERS.get(last)
        if producer is None:
            continue
        if producer[0] == "..":
            head, producer = head.rpartition(".")[0], producer[1:]
        given, made = first(outputs.get(f"{head}.{producer[0]}")), first(output)
        if given is not None and made is not None:
            yield module, given, made


def first(value: Any) -> Tensor | None:
    """The tensor, or the first of several: a fused norm gives the residual second."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return value if isinstance(value, Tensor) else None
