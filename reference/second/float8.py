"""e4m3 codes and block scales by search.

A value gets the code whose value is nearest, of two equally near ones the even code; a scale is the first power of two
of a list that is large enough. Different from the first: tables and searches in fp64 instead of conversions and bits.
"""

from __future__ import annotations

from math import ldexp

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def _value(code: int) -> float:
    exponent, fraction = code // 8, code % 8
    return ldexp(fraction, -9) if exponent == 0 else ldexp(8 + fraction, exponent - 10)


#: Values of the codes 0 to 7E, ascending.
VALUES = np.array([_value(code) for code in range(127)])
POWERS = 2.0 ** np.arange(-126, 128)


def encode(values: Array) -> Bytes:
    """Codes of fp32 or fp64 values; same shape."""
    size = np.minimum(np.abs(np.nan_to_num(values, nan=0.0, posinf=448.0, neginf=-448.0)), 448.0)
    above = np.searchsorted(VALUES, size)
    below = np.maximum(above - 1, 0)
    up, down = VALUES[above] - size, size - VALUES[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    code = np.where(np.isnan(values), 127, code)
    codes: Bytes = (code + 128 * np.signbit(values)).astype(np.uint8)
    return codes


def decode(codes: Bytes) -> Array:
    """Values of codes; same shape."""
    size = np.append(VALUES, np.nan)[codes & 127]
    values: Array = np.where(codes > 127, -size, size)
    return values


def scales(blocks: Array, scale_format: str, least_amax: float, least_scale: float) -> NDArray[np.float32]:
    """fp32 scales of the last axis; NaN and infinities take no part."""
    amax = np.max(np.where(np.isfinite(blocks), np.abs(blocks), 0.0), -1).astype(np.float32)
    scale: NDArray[np.float32] = np.maximum(
        np.maximum(amax, np.float32(least_amax)) / np.float32(448.0), np.float32(least_scale)
    )
    raised: NDArray[np.float32] = POWERS[np.searchsorted(POWERS, scale)].astype(np.float32)
    return scale if scale_format == "fp32" else raised


def bf16(values: Array) -> Array:
    """fp64 values rounded to bf16, ties to even: 8 significant bits, steps of 2^-133 near zero."""
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    rounded = np.rint(values / step) * step
    result: Array = np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)
    return result
