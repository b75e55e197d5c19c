"""Families of definitions: each writes a definition for any sizes, with one trusted reference."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kclab.core.families import (
    block_scaled_gemm,
    dense_gemm,
    fc2,
    gated_delta_rule,
    gated_delta_rule_served,
    head_gate,
    mla_absorbed,
    mla_sparse,
    moe_topk,
    prefix_cached_block_causal,
    ragged_attention,
    sdpa,
)
from kclab.core.families.family import Family

__all__ = ["FAMILIES", "Family", "family_of"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.name: family
        for family in (
            dense_gemm.FAMILY,
            sdpa.FAMILY,
            prefix_cached_block_causal.FAMILY,
            gated_delta_rule.PREFILL,
            gated_delta_rule.DECODE,
            gated_delta_rule_served.EXTEND,
            gated_delta_rule_served.UPDATE,
            ragged_attention.FAMILY,
            mla_absorbed.FAMILY,
            mla_sparse.FAMILY,
            moe_topk.SOFTMAX,
            moe_topk.GROUPED_SIGMOID,
            block_scaled_gemm.FAMILY,
            head_gate.FAMILY,
            *fc2.FAMILIES,
        )
    }
)
"""Every family, by name."""


def family_of(definition_name: str) -> str | None:
    """The family whose naming `definition_name` follows, None for a name of nobody's."""
    for family in FAMILIES.values():
        if family.names.fullmatch(definition_name):
            return family.name
    return None
