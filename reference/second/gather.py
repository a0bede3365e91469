"""Gathering cache rows one token at a time through a structured view of the cache."""

from __future__ import annotations

import numpy as np

from . import float8
from .pages import Integers, find, mla_row, walk


def gather(
    cache: np.ndarray,
    block_table: Integers,
    starts: Integers,
    cu_k: Integers,
    *,
    tokens: int,
    latent: int,
    rope: int,
    cache_format: str,
    k_scale: float = 1.0,
) -> float8.Array:
    """rows [t, c+r] as fp64; ``model`` caches are fp64 arrays."""
    rows = np.zeros((tokens, latent + rope))
    for token, request, position in walk(starts, cu_k):
        found = find(block_table, request, position, cache.shape[1], len(cache))
        if found is None:
            continue
        stored = cache[found]
        if cache_format == "model":
            rows[token] = stored
        elif cache_format == "fp8_e4m3":
            rows[token] = float8.bf16((float8.decode(stored) * np.float32(k_scale)).astype(np.float32))
        else:
            row = stored.view(mla_row(latent, rope))[0]
            tiles = float8.decode(row["codes"]).reshape(len(row["scales"]), -1)
            with np.errstate(invalid="ignore", over="ignore"):
                values = float8.bf16((tiles * row["scales"][:, None].astype(np.float64)).astype(np.float32))
                rows[token, latent:] = (row["rope"].astype("<u4") << 16).view("<f4")
            rows[token, :latent] = values.ravel()
    return rows
