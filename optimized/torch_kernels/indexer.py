"""Indexer scores as one einsum a chunk of queries."""

from __future__ import annotations

import torch
from torch import Tensor

from .precision import exact_fp32

#: Elements of the head-by-key products held at once, in fp32: 128 MiB.
_CHUNK_ELEMENTS = 1 << 25


@exact_fp32
def indexer_scores(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor) -> tuple[Tensor]:
    """q [s,i,e], k [t,e], k_scale [t], weights [s,i], ks, ke int32 [s] -> (scores fp32 [s,t],), -inf outside [ks,ke).

    bf16 and fp8 inputs are widened to fp32, which is exact; all sums are fp32.
    """
    queries, heads, _ = q.shape
    scores = torch.empty(queries, k.shape[0], dtype=torch.float32, device=q.device)
    keys = k.float()
    column = torch.arange(k.shape[0], device=q.device)
    step = max(1, _CHUNK_ELEMENTS // max(1, heads * k.shape[0]))
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        products = torch.einsum("sie,te->sit", q[rows].float(), keys).relu_()
        found = torch.einsum("sit,si->st", products, weights[rows].float()) * k_scale
        inside = (column >= ks[rows, None]) & (column < ke[rows, None])
        scores[rows] = torch.where(inside, found, float("-inf"))
    return (scores,)
