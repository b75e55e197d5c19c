"""Comparing outputs: every dtype, non-finite rules, and what a weak pass says."""

from __future__ import annotations

import math
import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kclab.core.digest import DTYPES
from kclab.core.tolerance import ALLCLOSE, OutputTolerance, default_tolerance
from kclab.db.verdicts import OutputVerdict
from kclab.replay import values
from kclab.replay.compare import compare_output
from kclab.replay.lowbits import decode

NAN, INF = math.nan, math.inf


def judge(reference: Tensor, engine: Tensor, **flags: bool) -> OutputVerdict:
    base = default_tolerance(str(engine.dtype).removeprefix("torch."))
    return compare_output(
        reference, engine, OutputTolerance(base.policy, base.rtol, base.atol, **flags), "out"
    )


def sample(dtype: str, count: int = 6) -> Tensor:
    """Different, finite values of any dtype."""
    kind = getattr(torch, dtype)
    if DTYPES[dtype].itemsize == 1 and "float" in dtype:
        return torch.arange(0x31, 0x31 + count, dtype=torch.uint8).view(kind)
    if dtype == "bool":
        return torch.tensor([i % 2 == 0 for i in range(count)])
    return torch.arange(1, count + 1).to(kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_outputs_pass(dtype: str) -> None:
    verdict = judge(sample(dtype), sample(dtype))
    assert verdict.passed
    assert (verdict.mismatched, verdict.max_abs, verdict.dtype) == (0, 0.0, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_other_element_fails_and_is_named(dtype: str) -> None:
    reference = sample(dtype)
    engine = reference.clone()
    if dtype == "bool":
        engine[4] = ~engine[4]
    elif dtype == "float4_e2m1fn_x2":
        engine.view(torch.uint8)[4] ^= 0x01
    elif DTYPES[dtype].itemsize == 1 and "float" in dtype:
        engine.view(torch.uint8)[4] += 1
    else:
        engine[4] = 60
    verdict = judge(reference, engine)
    assert not verdict.passed
    assert verdict.mismatched == 1
    assert list(verdict.worst_index or []) == [8 if dtype == "float4_e2m1fn_x2" else 4]
    assert verdict.max_abs and verdict.max_abs > 0


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_every_shape_compares(shape: tuple[int, ...]) -> None:
    verdict = judge(torch.ones(shape), torch.ones(shape))
    assert verdict.passed
    assert verdict.elements == math.prod(shape)


def test_the_worst_element_is_one_that_failed() -> None:
    engine = torch.tensor([[1000.0, 1.0], [2.0, 3.0]])
    reference = torch.tensor([[1000.05, 1.001], [2.0, 3.0]])
    verdict = judge(reference, engine)  # 0.05 is within 1e-4 of 1000, 0.001 is not of 1
    assert list(verdict.worst_index or []) == [0, 1]
    assert verdict.worst_engine == "1"
    assert verdict.mismatched == 1
    assert verdict.max_abs == pytest.approx(0.05, rel=1e-3)
    assert "1 of 4 elements differ, worst at [0, 1]" in (verdict.reason or "")


def test_counts_are_written_alike_on_both_sides() -> None:
    verdict = judge(torch.zeros(4096), torch.ones(4096))
    assert "4,096 of 4,096 elements differ" in (verdict.reason or "")


def test_integers_above_2_to_53_are_told_apart() -> None:
    engine = torch.tensor([2**53, 2**62 + 1])
    verdict = judge(torch.tensor([2**53, 2**62]), engine)
    assert verdict.mismatched == 1
    assert verdict.max_abs == 1.0
    assert verdict.worst_engine == str(2**62 + 1)


def test_unsigned_values_read_as_unsigned() -> None:
    engine = torch.tensor([2**64 - 1], dtype=torch.uint64)
    assert judge(torch.tensor([1], dtype=torch.uint64), engine).worst_engine == str(2**64 - 1)


def test_minus_zero_is_not_zero_where_bytes_count() -> None:
    tolerance = OutputTolerance("exact")
    verdict = compare_output(torch.tensor([0.0]), torch.tensor([-0.0]), tolerance, "out")
    assert not verdict.passed


def test_dtype_and_shape_must_agree() -> None:
    assert "dtype: engine float16, reference float32" in str(
        judge(torch.ones(2), torch.ones(2).half()).reason
    )
    assert "shape: engine [2], reference [1, 2]" in str(
        judge(torch.ones(1, 2), torch.ones(2)).reason
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_nan_never_matches_by_default(dtype: torch.dtype) -> None:
    both = torch.tensor([[1.0, 2.0], [NAN, 4.0]]).to(dtype)
    verdict = judge(both, both.clone())
    assert not verdict.passed
    assert verdict.reason and verdict.reason.startswith("non-finite: 1 of 4")
    assert list(verdict.worst_index or []) == [1, 0]


def test_equal_nan_matches_where_the_definition_says_so_and_is_recorded() -> None:
    both = torch.tensor([1.0, NAN])
    verdict = judge(both, both.clone(), equal_nan=True)
    assert verdict.passed
    assert verdict.metrics == {"equal_nan": 1}


def test_nan_against_a_number_fails_even_with_equal_nan() -> None:
    for pair in ((1.0, NAN), (NAN, 1.0)):
        verdict = judge(*(torch.tensor([0.5, value]) for value in pair), equal_nan=True)
        assert verdict.mismatched == 1
        assert list(verdict.worst_index or []) == [1]


def test_nan_in_a_low_bit_float_is_found() -> None:
    both = torch.tensor([0x38, 0x7F], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert "non-finite" in str(judge(both, both.clone()).reason)


def test_infinity_needs_leave() -> None:
    rows = torch.tensor([-INF, 1.0])
    assert not judge(rows, rows.clone()).passed
    verdict = judge(rows, rows.clone(), allow_inf=True)
    assert verdict.passed
    assert verdict.metrics == {"equal_inf": 1}


@pytest.mark.parametrize("pair", [(INF, -INF), (INF, 1.0), (3e38, INF), (INF, NAN)])
def test_only_equal_infinities_match(pair: tuple[float, float]) -> None:
    verdict = judge(torch.tensor([pair[0]]), torch.tensor([pair[1]]), allow_inf=True)
    assert verdict.mismatched == 1


def test_values_whose_squares_overflow_are_finite() -> None:
    big = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert judge(big, big.clone()).passed
    assert not judge(big, -big).passed


def test_zeros_for_a_tiny_truth_pass_with_a_warning() -> None:
    verdict = judge(torch.full((4,), 1e-5).bfloat16(), torch.zeros(4).bfloat16())
    assert verdict.passed
    assert "expected magnitude below atol" in str(verdict.metrics)
    assert verdict.relative_rms == 1.0


def test_nothing_compared_is_said() -> None:
    assert "no elements" in str(judge(torch.ones(0), torch.ones(0)).metrics)


def test_a_pass_that_proves_something_says_nothing() -> None:
    assert judge(torch.ones(3), torch.ones(3)).metrics is None


def test_noncontiguous_and_conjugated_outputs_compare_by_value() -> None:
    plain = torch.arange(6.0).reshape(2, 3)
    assert judge(plain.T.contiguous().T, plain).passed
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    assert judge(numbers.conj(), torch.tensor([1 - 2j, 3 + 1j])).passed


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(floats, floats, st.booleans()), min_size=1, max_size=20),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.floats(0, 1),
    st.floats(0, 10),
    st.booleans(),
)
def test_agrees_with_torch_assert_close(
    pairs: list[tuple[float, float, bool]],
    dtype: torch.dtype,
    rtol: float,
    atol: float,
    equal_nan: bool,
) -> None:
    engine = torch.tensor([e for e, _, _ in pairs], dtype=torch.float64).to(dtype)
    other = torch.tensor([e if same else r for e, r, same in pairs], dtype=torch.float64).to(dtype)
    tolerance = OutputTolerance(ALLCLOSE, rtol, atol, allow_inf=True, equal_nan=equal_nan)
    verdict = compare_output(other, engine, tolerance, "out")
    # In float64, since torch rounds the allowed difference to the outputs' own dtype.
    close = torch.isclose(
        other.double(), engine.double(), rtol=rtol, atol=atol, equal_nan=equal_nan
    )
    assert verdict.mismatched == int((~close).sum())
    assert verdict.passed == bool(close.all())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.randoms(use_true_random=False))
def test_chunks_do_not_change_the_verdict(count: int, chunk: int, random: object) -> None:
    generator = torch.Generator().manual_seed(count * 100 + chunk)
    engine = torch.randn(count, generator=generator)
    reference = engine + torch.randn(count, generator=generator) * 1e-4
    reference[count // 2] = NAN
    whole = judge(reference, engine)
    original = values.CPU_CHUNK
    values.CPU_CHUNK = chunk
    try:
        parts = judge(reference, engine)
    finally:
        values.CPU_CHUNK = original
    assert (parts.mismatched, parts.worst_index) == (whole.mismatched, whole.worst_index)
    assert parts.rms == pytest.approx(whole.rms)
    assert parts.reason == whole.reason


def test_memory_stays_at_a_few_chunks() -> None:
    engine = torch.zeros(1 << 26, dtype=torch.bfloat16)  # 128 MiB; as float64 it would be 512 MiB
    reference = engine.clone()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    judge(reference, engine)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize(
    "dtype",
    ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"],
)
def test_every_byte_decodes_as_torch_decodes_it(dtype: str) -> None:
    raw = torch.arange(256, dtype=torch.uint8)
    expected = raw.view(getattr(torch, dtype)).float().double()
    assert torch.equal(decode(raw, dtype).nan_to_num(nan=-7.0), expected.nan_to_num(nan=-7.0))


def test_four_bit_pairs_decode_low_nibble_first() -> None:
    found = decode(torch.tensor([0x72, 0xF1], dtype=torch.uint8), "float4_e2m1fn_x2")
    assert found.tolist() == [1.0, 6.0, 0.5, -6.0]


STATE = OutputTolerance("gdn_prefill_state")


def test_a_state_is_judged_by_relative_norms() -> None:
    engine = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    verdict = compare_output(engine * 1.005, engine, STATE, "new_state")
    assert verdict.passed
    assert verdict.metrics and verdict.metrics["relative_rms"] == pytest.approx(0.005, rel=1e-3)


def test_one_bad_head_fails_although_the_whole_state_is_close() -> None:
    engine = torch.randn(2, 8, 16, 16, generator=torch.Generator().manual_seed(0))
    engine[0, 0] *= 0.01  # a small head: its error is lost in the whole state's norm
    reference = engine.clone()
    reference[0, 0] *= 1.05
    verdict = compare_output(reference, engine, STATE, "new_state")
    assert not verdict.passed
    assert "head_relative_rms 0.05 exceeds 0.02" in str(verdict.reason)


def test_nan_in_a_state_fails() -> None:
    engine = torch.ones(1, 2, 4, 4)
    reference = engine.clone()
    reference[0, 1, 2, 3] = NAN
    verdict = compare_output(reference, engine, STATE, "new_state")
    assert list(verdict.worst_index or []) == [0, 1, 2, 3]
    assert "non-finite" in str(verdict.reason)


def test_an_updated_state_may_be_off_by_one_bfloat16_rounding_of_the_write_gate() -> None:
    noise = torch.Generator().manual_seed(0)
    state, key = torch.randn(2, 4, 16, 16, generator=noise), torch.randn(16, generator=noise)
    error, gate = torch.randn(2, 4, 16, generator=noise), torch.rand(2, 4, 1, generator=noise)
    written = [(beta * error)[..., None] * key for beta in (gate, gate.bfloat16().float())]
    policy = OutputTolerance("gdn_update_state")
    assert compare_output(state + written[0], state + written[1], policy, "new_state").passed
    assert not compare_output(state + written[0], state, policy, "new_state").passed
    assert not compare_output(state * 1.005, state, policy, "new_state").passed


def test_an_error_beyond_the_largest_magnitude_is_counted() -> None:
    engine = torch.ones(1, 2, 4, 4)
    reference = engine.clone()
    reference[0, 0, 0, 0] = 1.02
    verdict = compare_output(reference, engine, STATE, "new_state")
    assert verdict.mismatched == 1
    assert "relative_max 0.02 exceeds 0.015" in str(verdict.reason)
