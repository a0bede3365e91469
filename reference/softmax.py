"""Softmax attention of one chunk.

    scores = scale * q.k          -inf where the query may not see the key
    lse    = ln sum_t exp(scores)
    p      = exp(scores - lse)
    out    = sum_t p v

Source: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1; the log-sum-exp as in Dao et al. 2022 (arXiv:2205.14135).

A key that a query may not see has no influence on it whatever the key and value hold; NaN and infinity of keys that it
may see come through. A query with no key has p = 0, out = 0 and lse = -inf.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nan

import torch
from torch import Tensor

from .chunks import Chunk


def probabilities(chunk: Chunk, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax weights p [x, m, t], zero where not allowed, and lse [x, m] (natural log)."""
    hidden = ~chunk.allowed
    scores = torch.matmul(chunk.queries, chunk.keys.transpose(1, 2)).mul_(scale)  # [x, m, t]
    scores.masked_fill_(hidden, -inf)
    lse = scores.logsumexp(-1)
    # The second fill is for queries with no key, where exp(-inf - -inf) is NaN.
    p = scores.sub_(lse[..., None]).exp_().masked_fill_(hidden, 0.0)
    return p, lse


def weighted_sum(chunk: Chunk, weights: Tensor, values: Tensor) -> Tensor:
    """sum_t weights * values [x, m, v] over the allowed keys alone.

    Shapes:
        weights: [x, m, t]  not negative, zero where the chunk does not allow the key
        values: [x, t, v]
    """
    total = torch.matmul(weights, values)
    # 0 * NaN and 0 * inf of a hidden key are NaN, so a sum without NaN is right. Unused slots of a
    # tokens-first chunk are zero, so there NaN can only be the input's.
    if not chunk.heads_first or not total.isnan().any():
        return total
    total = torch.matmul(weights, values.nan_to_num(0.0, 0.0, 0.0))
    seen = chunk.allowed.expand(weights.shape).to(weights.dtype)
    for special, found in ((nan, values.isnan()), (inf, values == inf), (-inf, values == -inf)):
        total[torch.matmul(seen, found.to(weights.dtype)) > 0] += special
    return total


def attend(chunk: Chunk, scale: float) -> tuple[Tensor, Tensor]:
    """out [x, m, v] and lse [x, m] (natural log) of one chunk."""
    p, lse = probabilities(chunk, scale)
    return weighted_sum(chunk, p, chunk.values), lse


def attend_all(chunks: Iterable[Chunk], scale: float, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attends chunk by chunk into ``out`` [s, h, v] and ``lse`` [s, h], and returns both."""
    for chunk in chunks:
        chunk_out, chunk_lse = attend(chunk, scale)
        out[chunk.rows] = chunk.place(chunk_out)
        lse[chunk.rows] = chunk.place(chunk_lse)
    return out, lse
