"""Sparse attention by gathering the selected rows of the cache: what a kernel avoids, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .precision import exact_fp32

#: Gathered elements held at once, in fp32: 128 MiB.
_CHUNK_ELEMENTS = 1 << 25


@exact_fp32
def sparse_mqa(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q [s,h,c+r], kv [n,c+r], indices int32 [s,k] -> out [s,h,c], lse fp32 [s,h], natural log.

    Scores and softmax in fp32 of the widened inputs; the weights, sink and all, are rounded to the dtype of kv before
    they meet the values, and the product adds in fp32.
    """
    queries, heads, dim = q.shape
    out = torch.empty(queries, heads, value_dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(queries, heads, dtype=torch.float32, device=q.device)
    selected = indices.shape[1]
    valid = (indices >= 0) & (indices < kv.shape[0])
    if lengths is not None:
        valid &= torch.arange(selected, device=q.device) < lengths[:, None]
    step = max(1, _CHUNK_ELEMENTS // max(1, selected * (dim + heads)))
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        out[rows], lse[rows] = _attend(q[rows], kv, indices[rows], valid[rows], scale, value_dim, sink)
    return out, lse


def _attend(
    q: Tensor, kv: Tensor, indices: Tensor, valid: Tensor, scale: float, value_dim: int, sink: Tensor | None
) -> tuple[Tensor, Tensor]:
    if kv.shape[0] == 0 or indices.shape[1] == 0:
        return q.new_zeros(*q.shape[:2], value_dim), torch.full(q.shape[:2], float("-inf"), device=q.device)
    rows = kv[indices.masked_fill(~valid, 0).long()]
    rows.masked_fill_(~valid[..., None], 0)  # whatever row 0 holds must not meet a weight of zero
    scores = torch.bmm(q.float(), rows.float().mT) * scale
    scores.masked_fill_(~valid[:, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if sink is not None:
        weights *= torch.sigmoid(lse - sink)[..., None]
    weights.masked_fill_(lse.isneginf()[..., None], 0.0)
    return torch.bmm(weights.to(kv.dtype), rows[..., :value_dim]), lse
