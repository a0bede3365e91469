"""Merging by the logistic function of the difference, one query and head at a time.

    out = out_b + (out_a - out_b) / (1 + e^(lse_b - lse_a))    lse = max + ln(1 + e^-|lse_a - lse_b|)

Different from the first: one weight instead of two exponentials, and empties decided by case.
"""

from __future__ import annotations

from math import exp, inf, log1p

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def merge_lse(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
    """out [s, h, v] and lse [s, h], natural log."""
    out, lse = np.zeros(out_a.shape), np.full(lse_a.shape, -np.inf)
    for place in np.ndindex(*lse_a.shape):
        a, b = float(lse_a[place]), float(lse_b[place])
        if a == -inf or b == -inf:
            if a != b:
                out[place], lse[place] = (out_b[place], b) if a == -inf else (out_a[place], a)
            continue
        smaller, (low, high) = (
            exp(-abs(a - b)),
            (out_b[place], out_a[place]) if a >= b else (out_a[place], out_b[place]),
        )
        out[place] = high + (low - high) * (smaller / (1.0 + smaller))
        lse[place] = max(a, b) + log1p(smaller)
    return out, lse
