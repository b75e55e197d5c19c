"""4- and 8-bit floats decoded by table, since torch (2.13) lacks most of their arithmetic.

Layouts: OCP 8-bit Floating Point Specification (E4M3, E5M2), OCP Microscaling Formats (E2M1,
E8M0), and the `fnuz` variants of Noune et al., "8-bit Numerical Formats for Deep Neural Networks":
bias one larger, no negative zero, and the byte of -0 is the only NaN.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

FP4 = "float4_e2m1fn_x2"
"""Two values a byte, the first in the low nibble."""


def decode_byte(byte: int, dtype: str) -> float:
    """The value that one byte of an 8-bit float stands for."""
    if dtype == "float8_e8m0fnu":
        return math.nan if byte == 0xFF else math.ldexp(1.0, byte - 127)
    exponent_bits = 4 if "e4m3" in dtype else 5
    mantissa_bits = 7 - exponent_bits
    unsigned_zero = dtype.endswith("fnuz")
    if unsigned_zero and byte == 0x80:
        return math.nan
    exponent = byte >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = byte & ((1 << mantissa_bits) - 1)
    sign = -1.0 if byte & 0x80 else 1.0
    if not unsigned_zero and exponent == (1 << exponent_bits) - 1:
        if dtype == "float8_e5m2":
            return sign * math.inf if mantissa == 0 else math.nan
        if mantissa == (1 << mantissa_bits) - 1:
            return math.nan
    bias = (1 << (exponent_bits - 1)) - (0 if unsigned_zero else 1)
    significand = mantissa if exponent == 0 else mantissa | 1 << mantissa_bits
    return sign * math.ldexp(significand, max(exponent, 1) - bias - mantissa_bits)


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The eight magnitudes of a 4-bit float; bit 3 is the sign."""


def decode_nibble(nibble: int) -> float:
    """The value of one E2M1 nibble."""
    return -E2M1[nibble & 7] if nibble & 8 else E2M1[nibble]


@lru_cache(maxsize=32)
def _table(dtype: str, device: torch.device) -> Tensor:
    if dtype == FP4:
        pairs = [[decode_nibble(b & 15), decode_nibble(b >> 4)] for b in range(256)]
        return torch.tensor(pairs, dtype=torch.float64, device=device)
    values = [decode_byte(b, dtype) for b in range(256)]
    return torch.tensor(values, dtype=torch.float64, device=device)


def decode(raw: Tensor, dtype: str) -> Tensor:
    """float64 values [n] of bytes [n]; [2 n] for 4-bit pairs, low nibble first."""
    return _table(dtype, raw.device)[raw.to(torch.int64)].reshape(-1)


def unpack(raw: Tensor, dtype: str) -> Tensor:
    """The bit pattern of each value: the bytes themselves, or the nibbles of 4-bit pairs."""
    if dtype != FP4:
        return raw
    return torch.stack((raw & 15, raw >> 4), dim=1).reshape(-1)
