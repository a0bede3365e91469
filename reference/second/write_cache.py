"""Writing a latent cache one token at a time through a structured view of its rows.

Different from the first: fields of a numpy record instead of concatenated bytes, one token after the other.
"""

from __future__ import annotations

import numpy as np

from . import float8
from .pages import Integers, mla_row


def write_cache(
    latent: float8.Array,
    rope: float8.Array,
    slots: Integers,
    cache: np.ndarray,
    *,
    cache_format: str,
    scale_format: str = "pow2",
    least_amax: float = 0.0,
    least_scale: float = 1e-4,
    k_scale: float = 1.0,
) -> np.ndarray:
    """The cache afterwards; ``model`` caches are fp64 arrays of bf16 values."""
    after = cache.copy()
    flat = after.reshape(-1, cache.shape[2])
    for token, slot in enumerate(slots.tolist()):
        if not 0 <= slot < len(flat):
            continue
        values = np.concatenate((latent[token], rope[token]))
        if cache_format == "model":
            flat[slot] = float8.bf16(values)
        elif cache_format == "fp8_e4m3":
            quotient = values.astype(np.float32) / np.float32(k_scale)
            flat[slot] = float8.encode(quotient.astype(np.float64))
        else:
            row = flat[slot].view(mla_row(latent.shape[1], rope.shape[1]))[0]
            tiles = latent[token].reshape(len(row["scales"]), -1)
            row["scales"] = float8.scales(tiles, scale_format, least_amax, least_scale)
            quotient = tiles.astype(np.float32) / row["scales"][:, None]
            row["codes"] = float8.encode(quotient.astype(np.float64)).ravel()
            row["rope"] = float8.bf16(rope[token]).astype("<f4").view("<u4") >> 16
    return after
