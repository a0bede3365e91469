"""Scores of decoding requests, key by key from the bytes of the page that holds it.

Different from the first: a page is a record of two arrays (a structured dtype), and every pair of query and key is
visited on its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .float8 import decode

Array = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Integers = NDArray[np.integer]


def paged_indexer_scores(
    q: Array,
    k_cache: Bytes,
    weights: Array,
    context_lens: Integers,
    block_table: Integers,
    *,
    max_model_len: int,
    q_scale: Array | None = None,
) -> Array:
    """scores [b * m, max_model_len], -inf from each query's end on."""
    requests, queries, heads, dim = q.shape
    page = k_cache.shape[1] // (dim + 4)
    layout = np.dtype([("codes", np.uint8, (page, dim)), ("scales", np.float32, (page,))])
    pages = np.ascontiguousarray(k_cache).view(layout)[:, 0]
    scores = np.full((requests * queries, max_model_len), -np.inf)
    for row in range(requests * queries):
        request, query = divmod(row, queries)
        for key in range(max(0, int(context_lens[request]) - queries + query + 1)):
            held = pages[block_table[request, key // page]]
            vector = decode(held["codes"][key % page]) * float(held["scales"][key % page])
            total = 0.0
            for head in range(heads):
                product = float(q[request, query, head] @ vector)
                if not product <= 0.0:
                    weight = float(weights[row, head]) * (1.0 if q_scale is None else float(q_scale[row, head]))
                    total += weight * product
            scores[row, key] = total
    return scores
