"""Sparse attention over the distinct selected rows, each weighted by how often it was selected.

    out = sum_j n_j e^s_j kv_j / (sum_j n_j e^s_j + e^sink)    lse = ln sum_j n_j e^s_j    j distinct, n_j its count

Different from the first: duplicates are counted, not repeated; the sink is one more key with value 0 in the softmax,
not a factor afterwards; unused entries are dropped, not masked.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def sparse_mqa(
    q: Array,
    kv: Array,
    indices: Integers,
    *,
    scale: float,
    value_dim: int,
    lengths: Integers | None = None,
    sink: Array | None = None,
) -> tuple[Array, Array]:
    """out [s, h, c] and lse [s, h], natural log, without the sink."""
    out = np.zeros((q.shape[0], q.shape[1], value_dim))
    lse = np.full(q.shape[:2], -np.inf)
    for query, row in enumerate(indices.tolist()):
        entries = row if lengths is None else row[: max(0, int(lengths[query]))]
        counts = Counter(entry for entry in entries if 0 <= entry < len(kv))
        if not counts:
            continue
        chosen = list(counts)
        often = np.array([counts[entry] for entry in chosen], dtype=np.float64)
        for head in range(q.shape[1]):
            scores = scale * (kv[chosen] @ q[query, head])
            extra = -np.inf if sink is None else float(sink[head])
            top = max(float(scores.max()), extra)
            weights = often * np.exp(scores - top)
            lse[query, head] = scores.max() + np.log(np.sum(often * np.exp(scores - scores.max())))
            out[query, head] = weights @ kv[chosen, :value_dim] / (weights.sum() + np.exp(extra - top))
    return out, lse
