"""Indexer scores one pair at a time.

Different from the first: a loop over the windows and heads with scalar arithmetic, the scales of key and query inside
the ReLU, which is the same because scales are positive, and compressed rows filled as they are computed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def indexer_scores(
    q: Array,
    k: Array,
    k_scale: Array,
    weights: Array,
    ks: Integers,
    ke: Integers,
    *,
    q_scale: Array | None = None,
    max_seqlen_k: int | None = None,
) -> Array:
    """scores [s, t], -inf outside [ks, ke); with ``max_seqlen_k`` [s, max_seqlen_k], counted from ks."""
    scores = np.full((len(q), len(k) if max_seqlen_k is None else max_seqlen_k), -np.inf)
    for query in range(len(q)):
        first = max(0, int(ks[query]))
        for key in range(first, min(len(k), int(ke[query]))):
            total = 0.0
            for head in range(q.shape[1]):
                vector = q[query, head] if q_scale is None else q[query, head] * q_scale[query, head]
                product = float(np.dot(vector, k[key] * k_scale[key]))
                if not product <= 0.0:
                    total += float(weights[query, head]) * product
            scores[query, key if max_seqlen_k is None else key - first] = total
    return scores
