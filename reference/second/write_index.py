"""Writing the indexer's cache one key at a time through a structured view of its pages."""

from __future__ import annotations

import numpy as np

from . import float8
from .pages import Integers, index_page


def write_index(
    k: float8.Array, slots: Integers, pages: float8.Bytes, *, scale_format: str = "pow2", least_amax: float = 1e-4
) -> float8.Bytes:
    """The pages afterwards."""
    after = pages.copy()
    size = pages.shape[1] // (k.shape[1] + 4)
    records = after.view(index_page(size, k.shape[1]))[:, 0]
    for key, slot in zip(k, slots.tolist(), strict=True):
        page, place = divmod(slot, size)
        if 0 <= page < len(pages):
            scale = float8.scales(key, scale_format, least_amax, 0.0)
            records[page]["scales"][place] = scale
            records[page]["codes"][place] = float8.encode((key.astype(np.float32) / scale).astype(np.float64))
    return after
