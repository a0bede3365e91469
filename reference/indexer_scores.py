"""Lightning-indexer scores: how much each query wants each key.

    scores[s,t] = k_scale[t] * sum_i weights[s,i] * relu(q[s,i] . k[t])     for ks[s] <= t < ke[s], else -inf

ReLU comes before the weights, so a negative weight lowers a score. The query's own quantisation scale and the factors
e^-1/2 and i^-1/2 are inside ``weights``.

Source: DeepSeek-V3.2 (2025), eq. 1; DeepGEMM at 54e2261, ``fp8_mqa_logits``; the window as in vLLM 0.33.0, where ``ke``
is exclusive and carries causality.

Shapes:
    q: [s, i, e]    k: [t, e]    k_scale: [t]    weights: [s, i]    ks, ke: int [s]    scores: [s, t]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype, require_integers
from .chunks import CHUNK_ELEMENTS, cut


def indexer_scores(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor) -> tuple[Tensor]:
    """Scores of every query over the packed keys, -inf outside its window, in the compute dtype.

    Raises ValueError for shapes that do not fit.
    """
    dtype = compute_dtype(q, k, k_scale, weights)
    scores = torch.empty(q.shape[0], k.shape[0], dtype=dtype, device=q.device)
    for rows, part in indexer_chunks(q, k, k_scale, weights, ks, ke):
        scores[rows] = part
    return (scores,)


def indexer_chunks(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
    *,
    limit: int = CHUNK_ELEMENTS,
) -> Iterator[tuple[slice, Tensor]]:
    """The query rows in order and their scores [x, t]; at most ``limit`` scores of single heads at a time."""
    sizes = bind_sizes(
        ("q", q, "s i e"),
        ("k", k, "t e"),
        ("k_scale", k_scale, "t"),
        ("weights", weights, "s i"),
        ("ks", ks, "s"),
        ("ke", ke, "s"),
    )
    require_integers(ks=ks, ke=ke)
    dtype = compute_dtype(q, k, k_scale, weights)
    keys = k.to(dtype)
    column = torch.arange(sizes["t"], device=q.device)
    for rows in cut(slice(0, sizes["s"]), sizes["i"] * sizes["t"], limit):
        wanted = torch.einsum("xie,te->xit", q[rows].to(dtype), keys).relu_()
        scores = torch.einsum("xi,xit->xt", weights[rows].to(dtype), wanted) * k_scale.to(dtype)
        inside = (column >= ks[rows, None]) & (column < ke[rows, None])
        yield rows, scores.masked_fill_(~inside, -torch.inf)
