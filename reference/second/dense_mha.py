"""Dense attention as a stream: one key after the other through the online softmax recurrence.

    m' = max(m, s)    z' = z e^(m - m') + e^(s - m')    a' = a e^(m - m') + v e^(s - m')
    out = a / z    lse = m + ln z

Different from the first: no score matrix, no log-sum-exp, no mask; a query stops at its last key.

Source: Milakov and Gimelshein 2018 (arXiv:1805.02867).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def dense_mha(
    q: Array, k: Array, v: Array, cu_q: Integers, cu_k: Integers, *, scale: float, causal: bool = True
) -> tuple[Array, Array]:
    """out [s, h, v] and lse [s, h], natural log."""
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    for request in range(len(cu_q) - 1):
        first_key, end_key = int(cu_k[request]), int(cu_k[request + 1])
        for query in range(int(cu_q[request]), int(cu_q[request + 1])):
            after_it = int(cu_q[request + 1]) - 1 - query
            stop = end_key - after_it if causal else end_key
            for head in range(q.shape[1]):
                keys, values = k[first_key : max(stop, first_key), head], v[first_key:, head]
                out[query, head], lse[query, head] = _stream(q[query, head], keys, values, scale)
    return out, lse


def _stream(query: Array, keys: Array, values: Array, scale: float) -> tuple[Array, float]:
    highest, mass, total = -np.inf, 0.0, np.zeros(values.shape[1])
    for key, value in zip(keys, values, strict=False):
        score = scale * float(np.dot(query, key))
        new = max(highest, score) if score == score else score  # NaN stays NaN
        shrink, weight = np.exp(highest - new), np.exp(score - new)
        mass = mass * shrink + weight
        total = total * shrink + weight * value
        highest = new
    return (total / mass, highest + float(np.log(mass))) if len(keys) else (total, -np.inf)
