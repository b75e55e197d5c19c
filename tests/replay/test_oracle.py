"""Who is wrong: planted errors are named, rounding noise is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kclab.core.definition import Definition
from kclab.core.families import FAMILIES
from kclab.core.tolerance import tolerance_for
from kclab.db.verdicts import OracleVerdict
from kclab.replay.oracle import who_is_wrong
from kclab.replay.references import Reference
from kclab.replay.ulp import ulp_at
from tests.replay.toys import body


def judge(
    definition: Definition,
    inputs: Mapping[str, Any],
    engine: Tensor,
    returned: Tensor | None = None,
) -> OracleVerdict:
    """The verdict on the only output; the reference's own result unless `returned` replaces it."""
    reference = Reference(definition)
    (name,) = definition.outputs
    outputs = reference(inputs) if returned is None else {name: returned}
    tolerances = {name: tolerance_for(definition, name)}
    return who_is_wrong(reference, inputs, {name: engine}, outputs, tolerances)[0]


def gemm(k: int, dtype: str = "bf16", bias: bool = False) -> tuple[Definition, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(k)
    definition = FAMILIES["dense_gemm"].make(dtype=dtype, n=24, k=k, bias=bias)
    kind = getattr(torch, definition.inputs["A"].dtype)
    shapes = {"A": (20, k), "W": (24, k), "bias": (24,)}
    return definition, {
        name: torch.randn(shapes[name], generator=generator).to(kind) for name in definition.inputs
    }


def accumulated_in(a: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """A W^T, one K after the other, the sum rounded to `dtype` each time."""
    total = torch.zeros(a.shape[0], w.shape[0], dtype=dtype)
    for k in range(a.shape[1]):
        total = (total.float() + a[:, k : k + 1].float() @ w[:, k : k + 1].float().T).to(dtype)
    return total


@pytest.mark.parametrize("k", [16, 256, 1024])
def test_equal_rounding_noise_is_nobodys_fault(k: int) -> None:
    definition, inputs = gemm(k)
    engine = accumulated_in(inputs["A"], inputs["W"], torch.float32).bfloat16()
    verdict = judge(definition, inputs, engine)
    assert verdict.verdict == "neither"
    assert verdict.engine_rms_ulp == pytest.approx(12**-0.5, abs=0.03)  # one honest rounding


@pytest.mark.parametrize("k", [16, 256, 1024])
def test_another_summation_order_in_float32_is_nobodys_fault(k: int) -> None:
    definition, inputs = gemm(k, "fp32")
    engine = accumulated_in(inputs["A"], inputs["W"], torch.float32)
    assert judge(definition, inputs, engine).verdict == "neither"


def test_an_engine_that_accumulates_in_bfloat16_is_seen_by_its_rms() -> None:
    definition, inputs = gemm(256)
    engine = accumulated_in(inputs["A"], inputs["W"], torch.bfloat16)
    verdict = judge(definition, inputs, engine)
    assert verdict.verdict == "engine"
    assert verdict.engine_rms_ulp and verdict.reference_rms_ulp
    assert verdict.engine_rms_ulp > 10 * verdict.reference_rms_ulp


def test_tf32_where_float32_is_due_is_the_engines_fault() -> None:
    definition, inputs = gemm(1024, "fp32")
    a, w = ((t.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in inputs.values())
    assert judge(definition, inputs, a @ w.T).verdict == "engine"


@pytest.mark.parametrize("k", [16, 256, 1024])
@pytest.mark.parametrize("side", ["engine", "reference", "both"])
def test_one_wrong_element_is_named_with_its_side(k: int, side: str) -> None:
    definition, inputs = gemm(k)
    good = Reference(definition)(inputs)["C"]
    wrong = good.clone()
    wrong[3, 5] *= 1.03
    engine = good if side == "reference" else wrong
    verdict = judge(definition, inputs, engine, good if side == "engine" else wrong)
    assert verdict.verdict == side
    for name in ("engine", "reference"):
        if side in (name, "both"):
            assert verdict.metrics and verdict.metrics[name]["index"] == [3, 5]


def test_a_bias_added_after_rounding_is_nobodys_fault() -> None:
    definition, inputs = gemm(256, bias=True)
    inputs["bias"] = (inputs["bias"] * 100).bfloat16()
    engine = torch.nn.functional.linear(inputs["A"], inputs["W"]) + inputs["bias"]
    assert judge(definition, inputs, engine).verdict == "neither"


def test_a_forgotten_bias_is_the_engines_fault() -> None:
    definition, inputs = gemm(256, bias=True)
    engine = torch.nn.functional.linear(inputs["A"], inputs["W"])
    assert judge(definition, inputs, engine).verdict == "engine"


SOFTMAX = """
import torch
def run(x):
    wide = torch.softmax(x.float(), dim=-1, dtype=torch.float32)
    return (wide + torch.zeros(1, dtype=torch.float32)).to(torch.bfloat16)
"""


def softmax() -> tuple[Definition, dict[str, Tensor]]:
    definition = Definition.from_body(body("softmax", SOFTMAX, dtype="bfloat16", shape=("M", "N")))
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    return definition, {"x": x}


def test_a_reference_that_names_its_dtypes_is_run_in_float64_too() -> None:
    definition, inputs = softmax()
    truth = torch.softmax(inputs["x"].double(), -1)
    verdict = judge(definition, inputs, truth.bfloat16())
    assert verdict.verdict == "neither"
    # Rounded to bfloat16 inside, the truth itself would be what both sides return: distance 0.
    assert verdict.reference_rms_ulp == pytest.approx(12**-0.5, abs=0.05)


def test_an_outlier_is_named_where_no_bound_is_known() -> None:
    definition, inputs = softmax()
    engine = torch.softmax(inputs["x"].double(), -1).bfloat16()
    engine[2, 7] += 0.004  # inside the bfloat16 tolerance of 0.005
    verdict = judge(definition, inputs, engine)
    assert verdict.verdict == "engine"
    assert verdict.metrics and verdict.metrics["engine"]["index"] == [2, 7]


def test_nan_in_the_engine_is_the_engines_fault() -> None:
    definition, inputs = softmax()
    engine = torch.softmax(inputs["x"].double(), -1).bfloat16()
    engine[1, 1] = float("nan")
    verdict = judge(definition, inputs, engine)
    assert verdict.verdict == "engine"
    assert verdict.engine_max_ulp == float("inf")


def test_an_overflow_that_the_dtype_demands_is_nobodys_fault() -> None:
    reference = "def run(x):\n    return (x.float() * 1000).half()\n"
    definition = Definition.from_body(body("scale", reference, dtype="float16"))
    x = torch.tensor([100.0, 1.0]).half()  # 100,000 is infinite in float16
    assert judge(definition, {"x": x}, (x.float() * 1000).half()).verdict == "neither"


def test_integers_are_judged_by_equality() -> None:
    reference = "def run(x):\n    return x + 1\n"
    definition = Definition.from_body(body("next", reference, dtype="int32"))
    x = torch.tensor([1, 2, 3], dtype=torch.int32)
    assert judge(definition, {"x": x}, x + 1).verdict == "neither"
    assert judge(definition, {"x": x}, x).verdict == "engine"


def test_another_fp8_byte_is_the_engines_fault_where_the_reference_is_exact() -> None:
    definition = Definition.from_body(
        body("copy", "def run(x):\n    return x.clone()\n", dtype="float8_e4m3fn")
    )
    x = torch.tensor([0x38, 0x40], dtype=torch.uint8).view(torch.float8_e4m3fn)
    other = torch.tensor([0x38, 0x41], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert judge(definition, {"x": x}, other).verdict == "engine"


def test_a_reference_that_refuses_float64_leaves_it_undecided() -> None:
    picky = "import torch\ndef run(x):\n    assert x.dtype == torch.float32\n    return x\n"
    definition = Definition.from_body(body("picky", picky))
    verdict = judge(definition, {"x": torch.ones(2)}, torch.ones(2))
    assert verdict.verdict == "undecided"
    assert "AssertionError" in (verdict.metrics or {})["why"]


def test_bits_keep_their_meaning_in_float64_mode() -> None:
    reference = (
        "import torch\ndef run(x):\n    return x.view(torch.int32).view(torch.float32) * 1.0\n"
    )
    definition = Definition.from_body(body("bits", reference, dtype="int32"))
    x = torch.tensor([1.5, 2.5]).view(torch.int32)
    outputs = {"out": torch.tensor([1.5, 2.5])}
    verdict = judge(definition, {"x": x}, outputs["out"], outputs["out"])
    assert verdict.verdict == "neither"


@pytest.mark.parametrize(
    ("dtype", "value", "gap"),
    [
        ("bfloat16", 1.0, 2**-7),
        ("bfloat16", 1.99, 2**-7),
        ("float32", 4.0, 2**-21),
        ("float16", 0.0, 2**-24),
        ("float16", 1e-7, 2**-24),
        ("float8_e4m3fn", 1.0, 2**-3),
    ],
)
def test_ulp_is_the_gap_to_the_next_value(dtype: str, value: float, gap: float) -> None:
    assert ulp_at(torch.tensor([value], dtype=torch.float64), dtype).item() == gap


def test_a_reference_that_gives_nan_accuses_nobody() -> None:
    definition = Definition.from_body(body("nan", "def run(x):\n    return x / 0 * 0\n"))
    verdict = judge(definition, {"x": torch.ones(2)}, torch.ones(2))
    assert verdict.verdict == "undecided"
    assert "NaN" in (verdict.metrics or {})["why"]
