"""The gated delta rule's references against the published recurrence, scalar by scalar."""

from __future__ import annotations

import math

import pytest
import torch

from kclab.core.families import FAMILIES
from tests.core.families.family_reference import load_run

QK, V, D = 2, 4, 3


def prefill(*inputs: object):
    return load_run(FAMILIES["gated_delta_rule_prefill"].make(qk=QK, v=V, d=D))(*inputs)


def decode(*inputs: object):
    return load_run(FAMILIES["gated_delta_rule_decode"].make(qk=QK, v=V, d=D))(*inputs)


def gates(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def tokens(count: int) -> dict[str, torch.Tensor]:
    """Inputs of `count` tokens, float64."""
    return {
        "q": gates(count, QK, D),
        "k": gates(count, QK, D) / D**0.5,
        "v": gates(count, V, D),
        "A_log": gates(V),
        "a": gates(count, V),
        "dt_bias": gates(V),
        "b": gates(count, V),
    }


def by_hand(x: dict[str, torch.Tensor], state: torch.Tensor, rows: range, scale: float):
    """S_t = alpha S (I - beta k k^T) + beta v k^T, o_t = scale S_t q_t, in Python floats."""
    outputs = torch.zeros(len(rows), V, D, dtype=torch.float64)
    final = state.clone()
    for h in range(V):
        S = [[float(s) for s in row] for row in state[h]]
        for i, t in enumerate(rows):
            x_in = float(x["a"][t, h] + x["dt_bias"][h])
            alpha = math.exp(-math.exp(float(x["A_log"][h])) * math.log1p(math.exp(x_in)))
            beta = 1 / (1 + math.exp(-float(x["b"][t, h])))
            k = [float(n) for n in x["k"][t, h // (V // QK)]]
            q = [float(n) for n in x["q"][t, h // (V // QK)]]
            for row in range(D):
                seen = sum(S[row][c] * k[c] for c in range(D))
                value = float(x["v"][t, h, row])
                S[row] = [alpha * (S[row][c] - beta * seen * k[c]) + beta * value * k[c]
                          for c in range(D)]  # fmt: skip
                outputs[i, h, row] = scale * sum(S[row][c] * q[c] for c in range(D))
        final[h] = torch.tensor(S)
    return outputs, final


def ordered(x: dict[str, torch.Tensor], state: torch.Tensor | None) -> tuple[object, ...]:
    return (x["q"], x["k"], x["v"], state, x["A_log"], x["a"], x["dt_bias"], x["b"])


def test_prefill_follows_the_recurrence_in_each_sequence():
    x, state = tokens(7), gates(2, V, D, D)
    output, new_state = prefill(*ordered(x, state), torch.tensor([0, 3, 7]), 0.25)
    for n, rows in enumerate((range(0, 3), range(3, 7))):
        wanted, final = by_hand(x, state[n], rows, 0.25)
        torch.testing.assert_close(output[rows.start : rows.stop], wanted)
        torch.testing.assert_close(new_state[n], final)


def test_prefill_keeps_the_state_of_an_empty_sequence():
    x, state = tokens(2), gates(3, V, D, D)
    _, new_state = prefill(*ordered(x, state), torch.tensor([0, 0, 2, 2]), 1.0)
    assert torch.equal(new_state[0], state[0])
    assert torch.equal(new_state[2], state[2])
    assert not torch.equal(new_state[1], state[1])


def test_decode_is_one_token_of_prefill_for_each_sequence():
    x, state = tokens(5), gates(5, V, D, D)
    wanted, final = prefill(*ordered(x, state), torch.arange(6), 0.5)
    lead = {n: t if n in ("A_log", "dt_bias") else t[:, None] for n, t in x.items()}
    output, new_state = decode(*ordered(lead, state), 0.5)
    assert output.shape == (5, 1, V, D)
    torch.testing.assert_close(output[:, 0], wanted)
    torch.testing.assert_close(new_state, final)


@pytest.mark.parametrize("run", [prefill, decode])
def test_no_state_means_zeros_and_scale_zero_the_usual_one(run):
    x = tokens(2)
    x = {n: t if n in ("A_log", "dt_bias") or run is prefill else t[:, None] for n, t in x.items()}
    rest = (torch.tensor([0, 1, 2]),) if run is prefill else ()
    zeros = torch.zeros(2, V, D, D, dtype=torch.float64)
    for got, want in zip(
        run(*ordered(x, None), *rest, 0.0), run(*ordered(x, zeros), *rest, D**-0.5), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_outputs_have_the_interfaces_dtypes_and_float64_inputs_stay_float64():
    x = {n: t.float() if n in ("A_log", "dt_bias") else t.bfloat16() for n, t in tokens(4).items()}
    state = gates(1, V, D, D).float()
    before = state.clone()
    rest = (torch.tensor([0, 4]), 0.5)
    output, new_state = prefill(*ordered(x, state), *rest)
    assert (output.dtype, new_state.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(state, before)
    oracle, final = prefill(*ordered({n: t.double() for n, t in x.items()}, state.double()), *rest)
    assert (oracle.dtype, final.dtype) == (torch.float64, torch.float64)
    torch.testing.assert_close(output.double(), oracle, rtol=2**-8, atol=1e-4)
    torch.testing.assert_close(new_state.double(), final, rtol=1e-5, atol=1e-6)
