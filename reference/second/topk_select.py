"""Top-k by a full lexicographic sort of one window at a time.

Different from the first: the window is cut out before sorting, and the order is spelled as three keys (NaN first, then
the higher score, then the lower column).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def topk_select(scores: Array, ks: Integers, ke: Integers, *, k: int) -> NDArray[np.int32]:
    """indices [s, k], counted from ks, -1 padded."""
    indices = np.full((len(scores), k), -1, dtype=np.int32)
    for row, (start, stop) in enumerate(zip(ks.tolist(), ke.tolist(), strict=True)):
        window = scores[row, start : max(start, stop)].astype(np.float64)
        column = np.arange(len(window))
        if len(window) > k:
            broken = np.isnan(window)
            column = np.lexsort((column, -np.where(broken, 0.0, window), ~broken))[:k]
        indices[row, : len(column)] = column
    return indices
