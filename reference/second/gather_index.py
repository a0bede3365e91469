"""Gathering the indexer's keys one token at a time through a structured view of the pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import float8
from .pages import Integers, find, index_page, walk


def gather_index(
    pages: float8.Bytes, block_table: Integers, starts: Integers, cu_k: Integers, *, tokens: int, e: int
) -> tuple[float8.Bytes, NDArray[np.float32]]:
    """Codes [t, e] and scales [t]."""
    size = pages.shape[1] // (e + 4)
    records = pages.view(index_page(size, e))[:, 0]
    k, k_scale = np.zeros((tokens, e), dtype=np.uint8), np.zeros(tokens, dtype=np.float32)
    for token, request, position in walk(starts, cu_k):
        found = find(block_table, request, position, size, len(pages))
        if found is not None:
            page, place = found
            k[token], k_scale[token] = records[page]["codes"][place], records[page]["scales"][place]
    return k, k_scale
