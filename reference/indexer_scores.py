"""Lightning-indexer scores: how much each query wants each key.

    scores[s,t] = k_scale[t] * sum_i w[s,i] * relu(q[s,i] . k[t])     for ks[s] <= t < ke[s], else -inf
    w[s,i]      = weights[s,i] * q_scale[s,i]                         q_scale = 1 where it is folded into the weights

ReLU comes before the weights, so a negative weight lowers a score. The factors e^-1/2 and i^-1/2 are inside
``weights``. With ``max_seqlen_k`` the scores are compressed: row s starts at its own first key, column j being key
ks[s] + j, and is -inf from ke[s] - ks[s] on.

Source: DeepSeek-V3.2 (2025), eq. 1; DeepGEMM at 54e2261, ``fp8_mqa_logits`` and its ``max_seqlen_k``; the window as in
vLLM 0.33.0, where ``ke`` is exclusive and carries causality.

Shapes:
    q: [s, i, e]    k: [t, e]    k_scale: [t]    weights, q_scale: [s, i]    ks, ke: int [s]
    scores: [s, t], compressed [s, max_seqlen_k]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype, require_integers, require_scales
from .chunks import chunk_elements, cut


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
) -> tuple[Tensor]:
    """Scores of every query over the packed keys, -inf outside its window, in the compute dtype.

    Raises ValueError for shapes that do not fit, for a scale in use that is not a finite number above 0, and for a
    window longer than ``max_seqlen_k``.
    """
    dtype = compute_dtype(q, k, k_scale, weights)
    columns = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    scores = torch.empty(q.shape[0], columns, dtype=dtype, device=q.device)
    for rows, part in indexer_chunks(q, k, k_scale, weights, ks, ke, q_scale=q_scale, max_seqlen_k=max_seqlen_k):
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
    q_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
    limit: int | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """The query rows in order and their scores [x, ...]; at most ``limit`` scores of single heads at a time."""
    sizes = bind_sizes(
        ("q", q, "s i e"),
        ("k", k, "t e"),
        ("k_scale", k_scale, "t"),
        ("weights", weights, "s i"),
        ("ks", ks, "s"),
        ("ke", ke, "s"),
        *([("q_scale", q_scale, "s i")] if q_scale is not None else []),
    )
    require_integers(ks=ks, ke=ke)
    if q_scale is not None:
        require_scales(q_scale=q_scale)
    dtype = compute_dtype(q, k, k_scale, weights)
    keys = k.to(dtype)
    column = torch.arange(sizes["t"], device=q.device)
    for rows in cut(slice(0, sizes["s"]), sizes["i"] * sizes["t"], limit or chunk_elements(q.device)):
        wanted = torch.einsum("xie,te->xit", q[rows].to(dtype), keys).relu_()
        folded = weights[rows].to(dtype) if q_scale is None else weights[rows].to(dtype) * q_scale[rows].to(dtype)
        scores = torch.einsum("xi,xit->xt", folded, wanted) * k_scale.to(dtype)
        inside = (column >= ks[rows, None]) & (column < ke[rows, None])
        require_scales(k_scale=k_scale.where(inside.any(0), torch.ones_like(k_scale)))
        scores = scores.masked_fill_(~inside, -torch.inf)
        yield rows, scores if max_seqlen_k is None else compressed(scores, ks[rows], ke[rows], max_seqlen_k)


def compressed(scores: Tensor, ks: Tensor, ke: Tensor, columns: int) -> Tensor:
    """Scores [x, t] as [x, columns], each row from its own first key on and -inf behind its window.

    Raises ValueError for a window that has no room.
    """
    longest = int((ke.clamp(max=scores.shape[1]) - ks.clamp(min=0)).max()) if len(ks) else 0
    if longest > columns:
        raise ValueError(f"max_seqlen_k: expected at least {longest}, the longest window, got {columns}")
    key = ks[:, None].long().clamp(min=0) + torch.arange(columns, device=ks.device)
    padded = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)  # the last column stands for no key
    return padded.gather(1, torch.where(key < ke[:, None], key, scores.shape[1]).clamp(max=scores.shape[1]))
