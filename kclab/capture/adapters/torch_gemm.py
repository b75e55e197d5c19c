"""Matrix products as calls of the dense GEMM family: C = A W^T (+ bias).

Below autograd every linear layer and matrix product is one of these few operators. What has a
2-D equivalent of the same arithmetic becomes it; the rest is counted by its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kclab.capture.adapters import Handler, OperatorCall, Sighting, Uncaptured

TAGS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
"""The dtypes that the family has, by its names."""

Seen = Sighting | Uncaptured | None


def gemm(call: OperatorCall, a: Tensor, w: Tensor, bias: Tensor | None = None) -> Seen:
    """`a` [M, K] times `w` [N, K] transposed, plus `bias` [N]; views of the call's arguments."""
    if a.dtype not in TAGS or w.dtype != a.dtype:
        return Uncaptured(call.name, f"dtype {str(a.dtype).removeprefix('torch.')}")
    (m, k), n = a.shape, w.shape[0]
    if not n or not k:
        return Uncaptured(call.name, "empty")
    inputs = {"A": a, "W": w}
    if bias is not None:
        inputs["bias"] = bias
    return Sighting(
        family="dense_gemm",
        sizes={"n": n, "k": k, "dtype": TAGS[a.dtype], "bias": bias is not None},
        inputs=inputs,
        outputs=lambda result: {"C": result.reshape(m, n)},
        operation=call.name,
        variant=f"rows_{m}",
    )


def see_mm(call: OperatorCall) -> Seen:
    """`mm(self [M, K], mat2 [K, N])`; a linear's weight comes transposed and is turned back."""
    if call.argument("out_dtype") is not None:
        return Uncaptured(call.name, "output of another dtype")
    return gemm(call, call.argument("self"), call.argument("mat2").t())


def see_addmm(call: OperatorCall) -> Seen:
    """`addmm(self, mat1, mat2)`: biased where `self` is a row and neither factor scales."""
    if call.argument("out_dtype") is not None:
        return Uncaptured(call.name, "output of another dtype")
    w = call.argument("mat2").t()
    return _with_addend(call, call.argument("mat1"), w)


def see_bmm(call: OperatorCall) -> Seen:
    """`bmm(self [B, M, K], mat2 [B, K, N])` with one `mat2` for all: its rows are one matrix's."""
    if call.argument("out_dtype") is not None:
        return Uncaptured(call.name, "output of another dtype")
    a, b = call.argument("self"), call.argument("mat2")
    if not _is_shared(b):
        return Uncaptured(call.name, "batched")
    return gemm(call, a.reshape(-1, a.shape[2]), b[0].t())


def see_baddbmm(call: OperatorCall) -> Seen:
    """`baddbmm(self, batch1, batch2)` with a row for `self` and one `batch2` for all."""
    if call.argument("out_dtype") is not None:
        return Uncaptured(call.name, "output of another dtype")
    a, b = call.argument("batch1"), call.argument("batch2")
    if not _is_shared(b):
        return Uncaptured(call.name, "batched")
    return _with_addend(call, a.reshape(-1, a.shape[2]), b[0].t())


def see_mv(call: OperatorCall) -> Seen:
    """`mv(self [N, K], vec [K])`: a GEMM of one row."""
    return gemm(call, call.argument("vec")[None], call.argument("self"))


def see_addmv(call: OperatorCall) -> Seen:
    """`addmv(self [N], mat [N, K], vec [K])`: a biased GEMM of one row."""
    return _with_addend(call, call.argument("vec")[None], call.argument("mat"))


def _with_addend(call: OperatorCall, a: Tensor, w: Tensor) -> Seen:
    alpha, beta = call.argument("alpha"), call.argument("beta")
    if alpha != 1 or beta not in (0, 1):
        return Uncaptured(call.name, "scaled by alpha or beta")
    if beta == 0:  # torch ignores `self` then, NaN included
        return gemm(call, a, w)
    row = _as_row(call.argument("self"), w.shape[0])
    if row is None:
        return Uncaptured(call.name, "adds a matrix")
    return gemm(call, a, w, row)


def _as_row(addend: Tensor, n: int) -> Tensor | None:
    """The [N] row that `addend` repeats, None where its rows may differ."""
    while addend.dim() > 1:
        if addend.shape[0] != 1 and addend.stride(0) != 0:
            return None
        addend = addend[0]
    return addend.expand(n)


def _is_shared(batch: Tensor) -> bool:
    return batch.shape[0] == 1 or (batch.shape[0] > 1 and batch.stride(0) == 0)


def counted(reason: str) -> Callable[[OperatorCall], Seen]:
    """A handler for an operator that the family does not describe."""
    return lambda call: Uncaptured(call.name, reason)


GEMM_HANDLERS: Mapping[str, Handler] = {
    "aten::mm": see_mm,
    "aten::addmm": see_addmm,
    "aten::addmm_": see_addmm,
    "aten::bmm": see_bmm,
    "aten::baddbmm": see_baddbmm,
    "aten::baddbmm_": see_baddbmm,
    "aten::mv": see_mv,
    "aten::addmv": see_addmv,
    "aten::addmv_": see_addmv,
    "aten::addbmm": counted("sums over its batch"),
    "aten::addbmm_": counted("sums over its batch"),
    "aten::_addmm_activation": counted("fused activation"),
    "aten::_scaled_mm": counted("scaled operands"),
    "aten::_scaled_mm_v2": counted("scaled operands"),
    "aten::_scaled_grouped_mm": counted("grouped"),
    "aten::_grouped_mm": counted("grouped"),
    "aten::_int_mm": counted("integer"),
    "aten::_weight_int4pack_mm": counted("packed weight"),
    "aten::_weight_int8pack_mm": counted("packed weight"),
    "aten::_dyn_quant_matmul_4bit": counted("packed weight"),
    "aten::mkldnn_rnn_layer": counted("a recurrent layer in one kernel"),
    "aten::_cudnn_rnn": counted("a recurrent layer in one kernel"),
    "aten::mkldnn_linear": counted("packed weight"),
    "mkldnn::_linear_pointwise": counted("packed weight"),
    "mkl::_mkl_linear": counted("packed weight"),
    "quantized::linear": counted("packed weight"),
    "quantized::linear_dynamic": counted("packed weight"),
}
"""By operator; those that are not captured say why."""
