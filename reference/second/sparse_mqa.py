"""Sparse attention over the distinct selected rows, each weighted by how often it was selected.

    out = sum_j n_j e^s_j kv_j / (sum_j n_j e^s_j + e^sink)    lse = ln sum_j n_j e^s_j    j distinct, n_j its count

Different from the first: duplicates are counted, not repeated; the sink is one more key with value 0 in the softmax,
not a factor afterwards; unused entries are dropped, not masked; a quantised row is a record of three arrays (a
structured dtype), read alone when it is needed, and the scales of queries and cache stand outside the products.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from .float8 import decode

Array = NDArray[np.float64]
Integers = NDArray[np.integer]


def _row(kv: NDArray[np.generic], entry: int, cache_format: str, c: int, width: int) -> Array:
    """Row ``entry`` as float64 [width], without the scale of the whole cache."""
    stored = kv[entry] if kv.ndim == 2 else kv[entry // kv.shape[1], entry % kv.shape[1]]
    if cache_format == "model":
        numbers: Array = stored.astype(np.float64)
        return numbers
    if cache_format == "fp8_e4m3":
        return decode(stored.view(np.uint8))
    tiles = max(1, c // 128)
    parts = [("codes", np.uint8, (tiles, c // tiles)), ("scales", "<f4", (tiles, 1)), ("rope", "<u2", (width - c,))]
    record = np.frombuffer(stored.tobytes(), np.dtype(parts))[0]
    rope = (record["rope"].astype(np.uint32) << 16).view(np.float32)  # bf16 is the upper half of fp32
    row: Array = np.concatenate(((decode(record["codes"]) * record["scales"].astype(np.float64)).ravel(), rope))
    return row


def sparse_mqa(
    q: Array,
    kv: NDArray[np.generic],
    indices: Integers,
    *,
    scale: float,
    value_dim: int,
    lengths: Integers | None = None,
    sink: Array | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> tuple[Array, Array]:
    """out [s, h, c] and lse [s, h], natural log, without the sink."""
    out = np.zeros((q.shape[0], q.shape[1], value_dim))
    lse = np.full(q.shape[:2], -np.inf)
    count = len(kv) * (kv.shape[1] if kv.ndim == 3 else 1)
    for query, row in enumerate(indices.tolist()):
        entries = row if lengths is None else row[: max(0, int(lengths[query]))]
        counts = Counter(entry for entry in entries if 0 <= entry < count)
        if not counts:
            continue
        chosen = list(counts)
        keys = np.array([_row(kv, entry, cache_format, value_dim, q.shape[2]) for entry in chosen])
        often = np.array([counts[entry] for entry in chosen], dtype=np.float64)
        for head in range(q.shape[1]):
            scores = scale * q_scale * k_scale * (keys @ q[query, head])
            extra = -np.inf if sink is None else float(sink[head])
            top = max(float(scores.max()), extra)
            weights = often * np.exp(scores - top)
            lse[query, head] = scores.max() + np.log(np.sum(often * np.exp(scores - scores.max())))
            out[query, head] = k_scale * (weights @ keys[:, :value_dim]) / (weights.sum() + np.exp(extra - top))
    return out, lse
