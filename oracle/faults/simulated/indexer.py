"""Simulated ``indexer_scores``: a loop over index heads, ReLU, weights, and the scale of one-byte keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sites import INF


def window(cols: Tensor, ks: Tensor, ke: Tensor) -> Tensor:
    """Columns of each row that hold a score, bool [s, t]."""
    return (cols >= ks[:, None]) & (cols < ke[:, None])


def compressed(scores: Tensor, ks: Tensor, ke: Tensor, columns: int) -> Tensor:
    """Rows [s, t] copied one by one from their first key on, [s, columns], -inf behind the window."""
    out = torch.full((len(scores), columns), -INF, dtype=scores.dtype, device=scores.device)
    for row, (start, stop) in enumerate(zip(ks.tolist(), ke.tolist(), strict=True)):
        kept = scores[row, start:stop][:columns]
        out[row, : len(kept)] = kept
    return out


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class IndexerSites:
    """Error sites of the indexer; right by default."""

    inputs: Callable[[Tensor, Tensor, Tensor, Tensor], Inputs] = lambda q, k, k_scale, weights: (q, k, k_scale, weights)
    decode: Callable[[Tensor], Tensor] = lambda x: x.float()
    """Stored values to fp32."""
    heads: Callable[[int], Sequence[int]] = lambda count: range(count)
    dot: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.T
    activate: Callable[[Tensor], Tensor] = torch.relu
    weight: Callable[[Tensor, int], Tensor] = lambda weights, head: weights[:, head]
    weigh: Callable[[Tensor, Tensor], Tensor] = lambda x, weight: x * weight[:, None]
    total: Callable[[Tensor], Tensor] = lambda total: total
    """Running sum after each head."""
    fold: Callable[[Tensor, Tensor], Tensor] = lambda weights, q_scale: weights * q_scale
    dequantise: Callable[[Tensor, Tensor], Tensor] = lambda total, k_scale: total * k_scale
    window: Callable[[Tensor, Tensor, Tensor], Tensor] = window
    outside: float = -INF
    output: Callable[[Tensor], Tensor] = lambda scores: scores
    by_request: Callable[[Tensor, Tensor], Tensor] | None = None
    """Column that row s reads for column t, [s, t], from the columns and ks; None: the column itself."""
    compress: Callable[[Tensor, Tensor, Tensor, int], Tensor] = compressed


INDEXER_SITES = IndexerSites()


def indexer_scores(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
    *,
    q_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
    sites: IndexerSites = INDEXER_SITES,
) -> tuple[Tensor]:
    """Shapes: q [s, i, e], k [t, e], k_scale fp32 [t], weights and q_scale fp32 [s, i], ks and ke int32 [s].

    Returns (scores,) fp32 [s, t], -inf outside [ks, ke); with ``max_seqlen_k`` that many columns from ks on.
    """
    q, k, k_scale, weights = sites.inputs(q, k, k_scale, weights)
    weights = weights if q_scale is None else sites.fold(weights, q_scale)
    keys = sites.decode(k)
    total = torch.zeros(q.shape[0], k.shape[0], dtype=torch.float32, device=q.device)
    for head in sites.heads(q.shape[1]):
        activated = sites.activate(sites.dot(sites.decode(q[:, head]), keys))
        total = sites.total(total + sites.weigh(activated, sites.weight(weights, head)))
    scores = sites.output(sites.dequantise(total, k_scale))
    cols = torch.arange(k.shape[0], device=q.device)
    if sites.by_request is not None:
        scores = scores.gather(1, sites.by_request(cols, ks).clamp(0, max(k.shape[0] - 1, 0)))
    scores = scores.masked_fill(~sites.window(cols, ks, ke), sites.outside)
    return (scores if max_seqlen_k is None else sites.compress(scores, ks, ke, max_seqlen_k),)
