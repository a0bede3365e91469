"""RoPE as multiplication by a unit complex number; YaRN by counting turns.

    (a + ib) e^(i angle)      pair j turns original_positions * frequency_j / 2 pi times

Different from the first: complex arithmetic, frequencies as powers of one ratio, and the ends of the YaRN ramp found by
counting over the pairs, not by a closed formula.
"""

from __future__ import annotations

from math import log, pi

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def frequencies(dim: int, theta: float) -> Array:
    """Radians a position [r/2] without YaRN."""
    return np.exp(-log(theta) * np.arange(0, dim, 2) / dim)


def yarn_frequencies(
    dim: int, theta: float, *, factor: float, original_positions: int, beta_fast: float, beta_slow: float
) -> Array:
    """Radians a position [r/2] with YaRN."""
    turns = [original_positions * float(np.exp(-log(theta) * 2 * j / dim)) / (2 * pi) for j in range(dim)]
    low = max((j for j in range(dim) if turns[j] >= beta_fast), default=0)
    high = min((j for j in range(dim) if turns[j] <= beta_slow), default=dim - 1)
    result = []
    for j, frequency in enumerate(frequencies(dim, theta)):
        if j <= low:
            kept = 1.0
        elif j >= high:
            kept = 0.0
        else:
            kept = (high - j) / (high - low)
        result.append(frequency * (kept + (1.0 - kept) / factor))
    return np.array(result)


def rotate(x: Array, positions: Integers, frequency: Array, *, interleaved: bool, stretch: float = 1.0) -> Array:
    """x [s, r] or [s, h, r] turned by position * frequency and multiplied by ``stretch``."""
    half = x.shape[-1] // 2
    z = x[..., 0::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]
    turn = stretch * np.exp(1j * np.outer(positions, frequency))
    z = z * turn.reshape(len(x), *[1] * (x.ndim - 2), half)
    out = np.empty(x.shape)
    if interleaved:
        out[..., 0::2], out[..., 1::2] = z.real, z.imag
    else:
        out[..., :half], out[..., half:] = z.real, z.imag
    return out
