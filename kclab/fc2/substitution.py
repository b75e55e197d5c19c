"""Make running code use stored winners: `with kclab.fc2.apply():`.

Inside the block `torch.nn.functional.linear` (bf16, no bias), `torch._scaled_mm` (FP8, one scale
an operand) and comfy-kitchen's `scaled_mm_nvfp4` run the stored best config where one is known for
their shape; every other call goes through as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from kclab.core.errors import CheckFailed, EnvironmentLacking, NothingMatched
from kclab.db.queries.fc2 import best_results, one_result
from kclab.db.store import Store, locate_database
from kclab.fc2.backends import Backend, Refused, load_backend
from kclab.fc2.choice import explicit_candidate
from kclab.fc2.config import AlgorithmConfig, parse_config
from kclab.fc2.operands import Operands
from kclab.fc2.problem import BASELINE_WORKSPACE, Precision, Problem
from kclab.fc2.validity import current_validity

if TYPE_CHECKING:
    from torch import Tensor

Key = tuple[Precision, int, int, int, bool]
"""Precision, padded rows, N, K, fast accumulation."""


@dataclass(slots=True)
class Applied:
    """What a block uses, and what happened in it."""

    winners: Mapping[Key, AlgorithmConfig]
    calls: Counter[str] = field(default_factory=Counter)
    """`replaced` and `passed through`, by count."""


class Replacement:
    """Runs a stored config in place of a library call."""

    def __init__(self, backend: Backend, winners: Mapping[Key, AlgorithmConfig], workspace: int):
        self._backend = backend
        self._winners = winners
        self._workspace = workspace
        self._ready: dict[Key, tuple[Any, Any]] = {}
        self.calls: Counter[str] = Counter()

    def run(self, problem: Problem, operands: Operands) -> Tensor | None:
        """The product, or None where no winner is known for this problem."""
        key = key_of(problem)
        if key not in self._winners:
            self.calls["passed through"] += 1
            return None
        if key not in self._ready:
            self._ready[key] = self._open(problem, operands, self._winners[key])
        gemm, prepared = self._ready[key]
        gemm.output = torch.empty_like(gemm.output)
        gemm.run(prepared, operands)
        self.calls["replaced"] += 1
        output: Tensor = gemm.output
        return output

    def _open(
        self, problem: Problem, operands: Operands, config: AlgorithmConfig
    ) -> tuple[Any, Any]:
        gemm = self._backend.open(problem, operands, self._workspace)
        try:
            explicit_candidate(gemm, config)
            return gemm, gemm.prepare(config)
        except Refused as refusal:
            raise CheckFailed(f"the stored config {config.text} is refused: {refusal}") from refusal

    def close(self) -> None:
        """Free what the backend holds."""
        for gemm, _ in self._ready.values():
            gemm.close()


def key_of(problem: Problem) -> Key:
    """What a winner is looked up by."""
    fast = problem.fast_accumulation
    return problem.precision, problem.m_padded, problem.n, problem.k, fast


@contextmanager
def apply(
    database: Path | None = None,
    *,
    workspace: int = BASELINE_WORKSPACE,
    backend: str = "cublaslt",
    ungated: bool = False,
    inexact: bool = False,
) -> Iterator[Applied]:
    """Use the stored winners inside this block.

    Only gated winners, unless `ungated`. Raises EnvironmentLacking where winners are stored but
    under another validity key (naming what differs), and NothingMatched where there are none.
    """
    chosen = load_backend(backend)
    store = Store.at(locate_database(database))
    winners = stored_winners(store, chosen, workspace, ungated=ungated, inexact=inexact)
    replacement = Replacement(chosen, winners, workspace)
    applied = Applied(winners, replacement.calls)
    try:
        with _Calls(replacement), _comfy(replacement):
            yield applied
    finally:
        replacement.close()


def stored_winners(
    store: Store, backend: Backend, workspace: int, *, ungated: bool, inexact: bool
) -> dict[Key, AlgorithmConfig]:
    """The configs that may be used here, by problem. Raises as `apply` does."""
    validity = current_validity(backend)
    with closing(store.read()) as connection:
        rows = best_results(connection, workspace=workspace, inexact=inexact)
        rows = [r for r in rows if not r["is_control"] and r["verdict"] == "FAST"]
        keyed = [(row, one_result(connection, row["result_id"])["validity"]) for row in rows]
    if not keyed:
        raise NothingMatched("no stored winner is faster than the heuristic; nothing to apply.")
    fitting = [row for row, facts in keyed if not validity.differences(facts)]
    if not fitting:
        moved = "; ".join(validity.differences(keyed[0][1]))
        raise EnvironmentLacking(
            f"{len(keyed)} stored winners are not valid here ({moved}); "
            "run kclab fc2 verify, then kclab fc2 sweep."
        )
    allowed = [row for row in fitting if ungated or row["gates"] == "gated"]
    if not allowed:
        raise NothingMatched(
            f"{len(fitting)} stored winners have passed no gate; run kclab fc2 sweep --confirm 3 "
            "or kclab fc2 block-gate, or say ungated=True."
        )
    return {key_of(_problem(row)): parse_config(row["config"]) for row in allowed}


def _problem(row: Mapping[str, Any]) -> Problem:
    fast = bool(row["fast_accumulation"])
    return Problem(Precision(row["precision"]), row["m"], row["n"], row["k"], fast)


class _Calls(TorchFunctionMode):
    """Sees torch's own GEMM calls."""

    def __init__(self, replacement: Replacement):
        super().__init__()
        self._replacement = replacement

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        found = None
        if func is torch.nn.functional.linear:
            found = _linear(self._replacement, *args, **named)
        elif func is torch._scaled_mm:
            found = _scaled_mm(self._replacement, *args, **named)
        return func(*args, **named) if found is None else found


def _linear(
    replacement: Replacement, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    plain = input.dtype == weight.dtype == torch.bfloat16 and weight.is_contiguous()
    if bias is not None or not plain or input.requires_grad or not input.numel():
        return None
    rows = input.reshape(-1, input.shape[-1]).contiguous()
    problem = Problem(Precision.BF16, rows.shape[0], weight.shape[0], weight.shape[1])
    output = replacement.run(problem, Operands(rows, weight))
    return None if output is None else output.reshape(*input.shape[:-1], weight.shape[0])


def _scaled_mm(
    replacement: Replacement,
    input: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor | None:
    weight = mat2.t()
    plain = (
        input.dtype == mat2.dtype == torch.float8_e4m3fn
        and out_dtype == torch.bfloat16
        and bias is None
        and scale_result is None
        and scale_a.numel() == scale_b.numel() == 1
        and input.is_contiguous()
        and weight.is_contiguous()
        and input.shape[0] % 16 == 0
    )
    if not plain:
        return None
    n, k = weight.shape
    problem = Problem(Precision.FP8, input.shape[0], n, k, use_fast_accum)
    return replacement.run(problem, Operands(input, weight, scale_a, scale_b))


@contextmanager
def _comfy(replacement: Replacement) -> Iterator[None]:
    if not any(key[0] is Precision.NVFP4 for key in replacement._winners):
        yield
        return
    import comfy_kitchen

    original = comfy_kitchen.scaled_mm_nvfp4
    comfy_kitchen.scaled_mm_nvfp4 = _comfy_call(replacement, original)
    try:
        yield
    finally:
        comfy_kitchen.scaled_mm_nvfp4 = original


def _comfy_call(replacement: Replacement, original: Callable[..., Any]) -> Callable[..., Any]:
    def scaled_mm_nvfp4(
        a: Tensor,
        b: Tensor,
        tensor_scale_a: Tensor,
        tensor_scale_b: Tensor,
        block_scale_a: Tensor,
        block_scale_b: Tensor,
        bias: Tensor | None = None,
        out_dtype: torch.dtype = torch.bfloat16,
        alpha: Tensor | None = None,
    ) -> Any:
        found = None
        if bias is None and out_dtype == torch.bfloat16:
            scale = tensor_scale_a * tensor_scale_b if alpha is None else alpha
            problem = Problem(Precision.NVFP4, a.shape[0], b.shape[0], 2 * a.shape[1])
            operands = Operands(
                a,
                b,
                block_scale_a,
                block_scale_b,
                tensor_scale_a,
                tensor_scale_b,
                scale.float().reshape(1),
            )
            found = replacement.run(problem, operands)
        if found is not None:
            return found
        return original(
            a, b, tensor_scale_a, tensor_scale_b, block_scale_a, block_scale_b, bias, out_dtype,
            alpha,
        )  # fmt: skip

    return scaled_mm_nvfp4
