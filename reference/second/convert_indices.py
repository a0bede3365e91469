"""From positions to cache rows, one entry at a time, in Python's integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .pages import Integers, find


def convert_indices(
    indices: Integers,
    requests: Integers,
    block_table: Integers,
    *,
    block_size: int,
    blocks: int,
    page_rows: int,
    compact: bool = False,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """physical [s, k] and counts [s]."""
    physical, counts = [], []
    for entries, request in zip(indices.tolist(), requests.tolist(), strict=True):
        places = [find(block_table, request, position, block_size, blocks) for position in entries]
        rows = [-1 if place is None else place[0] * page_rows + place[1] for place in places]
        valid = [row for row in rows if row >= 0]
        counts.append(len(valid))
        physical.append(valid + [-1] * (len(rows) - len(valid)) if compact else rows)
    return np.array(physical, dtype=np.int32).reshape(indices.shape), np.array(counts, dtype=np.int32)
