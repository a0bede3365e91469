"""Masked attention by explicit sums over the list of visible keys, in exactly rounded summation.

    out = fsum(e^(s_j - max) v_j) / fsum(e^(s_j - max))    lse = max + ln fsum(e^(s_j - max))

Different from the first: the mask bytes are unpacked by ``numpy.unpackbits``, hidden keys are never touched, and sums
are free of rounding (``math.fsum``).
"""

from __future__ import annotations

from math import exp, fsum, log

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def masked_mha(
    q: Array,
    k: Array,
    v: Array,
    mask: NDArray[np.int32],
    cu_q: Integers,
    cu_k: Integers,
    *,
    scale: float,
    causal: bool = True,
) -> tuple[Array, Array]:
    """out [s, h, v] and lse [s, h], natural log."""
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    bits = np.unpackbits(np.ascontiguousarray(mask.astype("<i4")).view(np.uint8), axis=-1, bitorder="little")
    for request in range(len(cu_q) - 1):
        queries, keys = int(cu_q[request + 1] - cu_q[request]), int(cu_k[request + 1] - cu_k[request])
        for i in range(queries):
            last = i + keys - queries if causal else keys - 1
            seen = [int(cu_k[request]) + j for j in range(keys) if bits[request, i, j] and j <= last]
            query = int(cu_q[request]) + i
            for head in range(q.shape[1]) if seen else ():
                scores = [scale * fsum(q[query, head] * k[j, head]) for j in seen]
                weights = [exp(score - max(scores)) for score in scores]
                mass = fsum(weights)
                lse[query, head] = max(scores) + log(mass)
                for column in range(v.shape[2]):
                    parts = (weight * v[j, head, column] for weight, j in zip(weights, seen, strict=True))
                    out[query, head, column] = fsum(parts) / mass
    return out, lse
