"""Indexer scores one pair at a time.

Different from the first: a loop over the windows and heads with scalar arithmetic, and the key's scale inside the
ReLU, which is the same because scales are positive.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def indexer_scores(q: Array, k: Array, k_scale: Array, weights: Array, ks: Integers, ke: Integers) -> Array:
    """scores [s, t], -inf outside [ks, ke)."""
    scores = np.full((len(q), len(k)), -np.inf)
    for query in range(len(q)):
        for key in range(max(0, int(ks[query])), min(len(k), int(ke[query]))):
            total = 0.0
            for head in range(q.shape[1]):
                product = float(np.dot(q[query, head], k[key] * k_scale[key]))
                if not product <= 0.0:
                    total += float(weights[query, head]) * product
            scores[query, key] = total
    return scores
