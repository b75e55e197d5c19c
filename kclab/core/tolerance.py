"""How far an output may lie from its reference: per dtype by default, per output by definition.

A definition's `tolerance` key maps an output's name to any of

    rtol, atol      numbers; |reference - engine| <= atol + rtol * |engine| for every element
    exact           true: the same bytes
    policy          a named metric policy (POLICIES)
    allow_inf       true: equal infinities match (log-sum-exp rows of masked keys are -inf)
    equal_nan       true: NaN matches NaN; recorded with the verdict, since it can hide a fault

Without it an output takes its dtype's default from DEFAULTS; integers and bool are exact, 4- and
8-bit floats are compared as bytes. NaN and infinity fail unless the definition says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclab.core.errors import DefinitionInvalid

if TYPE_CHECKING:
    from kclab.core.definition import Definition

ALLCLOSE = "allclose"
EXACT = "exact"
BYTES = "bytes"
GDN_PREFILL_STATE = "gdn_prefill_state"
GDN_UPDATE_STATE = "gdn_update_state"

DEFAULTS: Mapping[str, tuple[float, float]] = {
    "bfloat16": (0.016, 0.005),
    "float16": (0.002, 0.000625),
    "float32": (1e-4, 2e-5),
    "float64": (1e-9, 1e-10),
    "complex64": (1e-4, 2e-5),
    "complex128": (1e-9, 1e-10),
}
"""(rtol, atol) by dtype. float16 has bfloat16's two at the ratio of their epsilons."""

LOW_BIT = frozenset(
    {
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    }
)
"""Floats too coarse for a relative tolerance: any difference is at least 6 %."""


@dataclass(frozen=True, slots=True)
class StateBounds:
    """Bounds of a state's errors, each against the engine's own magnitude; see POLICIES."""

    relative_rms: float = 0.01
    """RMS error over the engine's RMS; a row's own `relative_rms` takes the larger side's."""
    relative_max: float = 0.015
    head_relative_rms: float = 0.02


POLICIES: Mapping[str, StateBounds] = {
    GDN_PREFILL_STATE: StateBounds(),
    GDN_UPDATE_STATE: StateBounds(0.004, 0.004, 0.004),
}
"""Named metric policies.

`gdn_prefill_state`: a gated-delta-rule engine rounds its chunk's matrix operands to bfloat16
although the final state is float32, so elements differ by far more than a float32 tolerance.

`gdn_update_state`: SGLang's packed decode rounds the write gate sigmoid(b) to b's dtype before it
scales what is written; the bounds are bfloat16's epsilon, 2^-8.
"""

STATE_DEFINITIONS = "gated_delta_rule_prefill_"
"""Definitions of this prefix that name no tolerance take the policy for their float32 outputs."""


@dataclass(frozen=True, slots=True)
class OutputTolerance:
    """How one output is judged."""

    policy: str
    """`allclose`, `exact`, `bytes`, or a key of POLICIES."""
    rtol: float | None = None
    """For `allclose` only."""
    atol: float | None = None
    """For `allclose` only, in the output's unit."""
    allow_inf: bool = False
    equal_nan: bool = False


def tolerance_for(definition: Definition, output: str) -> OutputTolerance:
    """The tolerance of one output of a definition; raises DefinitionInvalid."""
    dtype = definition.outputs[output].dtype
    stated = definition.tolerance.get(output)
    if stated is not None:
        return parse_tolerance(stated, dtype, f"{definition.name}: tolerance of {output!r}")
    if dtype == "float32" and definition.name.startswith(STATE_DEFINITIONS):
        return OutputTolerance(GDN_PREFILL_STATE)
    return default_tolerance(dtype)


def default_tolerance(dtype: str) -> OutputTolerance:
    """What an output of `dtype` is judged by when its definition says nothing."""
    if dtype in DEFAULTS:
        rtol, atol = DEFAULTS[dtype]
        return OutputTolerance(ALLCLOSE, rtol, atol)
    return OutputTolerance(BYTES if dtype in LOW_BIT else EXACT)


def parse_tolerance(stated: Any, dtype: str, where: str) -> OutputTolerance:
    """One output's entry under `tolerance`; raises DefinitionInvalid naming `where`."""
    if not isinstance(stated, Mapping):
        raise DefinitionInvalid(f"{where}: {stated!r} is not an object.")
    known = {"rtol", "atol", "exact", "policy", "allow_inf", "equal_nan"}
    if unknown := sorted(set(stated) - known):
        raise DefinitionInvalid(
            f"{where}: unknown {', '.join(map(repr, unknown))};"
            f" known are {', '.join(sorted(known))}."
        )
    allow_inf = _flag(stated, "allow_inf", where)
    equal_nan = _flag(stated, "equal_nan", where)
    base = _rule(stated, dtype, where)
    return OutputTolerance(base.policy, base.rtol, base.atol, allow_inf, equal_nan)


def _rule(stated: Mapping[str, Any], dtype: str, where: str) -> OutputTolerance:
    numbers = {key: stated[key] for key in ("rtol", "atol") if key in stated}
    exact = _flag(stated, "exact", where)
    named = stated.get("policy")
    if (named is not None) + exact + bool(numbers) > 1:
        raise DefinitionInvalid(f"{where}: rtol/atol, exact and policy exclude each other.")
    if exact:
        return OutputTolerance(BYTES if dtype in LOW_BIT else EXACT)
    if named is not None:
        return _named(named, where)
    if not numbers:
        return default_tolerance(dtype)
    default_rtol, default_atol = DEFAULTS.get(dtype, (0.0, 0.0))
    return OutputTolerance(
        ALLCLOSE,
        _number(numbers.get("rtol", default_rtol), "rtol", where),
        _number(numbers.get("atol", default_atol), "atol", where),
    )


def _named(name: Any, where: str) -> OutputTolerance:
    if name not in POLICIES:
        raise DefinitionInvalid(
            f"{where}: unknown policy {name!r}; known are {', '.join(sorted(POLICIES))}."
        )
    return OutputTolerance(name)


def _flag(stated: Mapping[str, Any], key: str, where: str) -> bool:
    value = stated.get(key, False)
    if not isinstance(value, bool):
        raise DefinitionInvalid(f"{where}: {key} is {value!r}, not true or false.")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DefinitionInvalid(f"{where}: {key} is {value!r}, not a number.")
    if not math.isfinite(value) or value < 0:
        raise DefinitionInvalid(f"{where}: {key} is {value!r}; it must be finite and at least 0.")
    return float(value)
