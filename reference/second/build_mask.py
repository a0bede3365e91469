"""Bit masks by ``numpy.packbits`` of a boolean picture of each request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .pages import Integers


def build_mask(
    indices: Integers,
    cu_q: Integers,
    starts: Integers,
    lengths: Integers,
    *,
    rows: int,
    words: int,
    key_starts: Integers | None = None,
) -> NDArray[np.int32]:
    """mask [b, rows, words]."""
    picture = np.zeros((len(starts), rows, words * 32), dtype=bool)
    for request, start in enumerate(starts.tolist()):
        for row, entries in enumerate(indices[cu_q[request] : cu_q[request + 1]].tolist()):
            for position in set(entries):
                if position >= 0 and 0 <= position - start < lengths[request]:
                    picture[request, row, position - start] = True
    mask = np.packbits(picture, axis=-1, bitorder="little").view("<i4").reshape(len(starts), rows, words).copy()
    if key_starts is not None:
        mask[:, 0, -1] = key_starts
    return mask
