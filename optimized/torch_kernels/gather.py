"""Sparse attention by gathering the selected rows of the cache: what a kernel avoids, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..latent_rows import SparseCall, check_quantised, views
from .precision import exact_fp32

#: Gathered elements held at once, in fp32: 128 MiB.
_CHUNK_ELEMENTS = 1 << 25


@exact_fp32
def sparse_mqa(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q [s,h,c+r], kv [n,c+r], indices int32 [s,k] -> out [s,h,c], lse fp32 [s,h], natural log.

    Scores and softmax in fp32 of the widened inputs; the weights, sink and all, are rounded to the dtype of kv before
    they meet the values, and the product adds in fp32. Quantised caches (see ``latent_rows``) are decoded to fp32 and
    stay so, but for that their weights are rounded to bf16.
    """
    if cache_format != "model":
        call = SparseCall(q, kv, indices, value_dim, lengths, sink, cache_format, q_scale, k_scale)
        return _quantised(call, scale, torch.bfloat16, 1.0)
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


@exact_fp32
def sparse_mqa_fp8(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As ``sparse_mqa`` on fp8_e4m3, with the weights in e4m3 too: unnormalised, times 448 to fill its range.

    What kernels compute that have fp8 operands in both products.
    """
    return _quantised(
        SparseCall(q, kv, indices, value_dim, lengths, sink, cache_format, q_scale, k_scale),
        scale,
        torch.float8_e4m3fn,
        448.0,
    )


def _quantised(call: SparseCall, scale: float, weights: torch.dtype, factor: float) -> tuple[Tensor, Tensor]:
    """out bf16 and lse; ``weights``: what exp(S - max) times ``factor`` is rounded to."""
    check_quantised(call)
    held, q, c = views(call), call.q, call.value_dim
    out = torch.zeros(*q.shape[:2], c, dtype=torch.bfloat16, device=q.device)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float32, device=q.device)
    selected, page = call.indices.shape[1], held.codes.size(1)
    if held.rows == 0 or selected == 0:
        return out, lse
    valid = (call.indices >= 0) & (call.indices < held.rows)
    if call.lengths is not None:
        valid &= torch.arange(selected, device=q.device) < call.lengths[:, None]
    step = max(1, _CHUNK_ELEMENTS // (selected * (q.shape[1] + q.shape[2])))
    for start in range(0, q.shape[0], step):
        part = slice(start, start + step)
        seen = valid[part]
        rows = call.indices[part].masked_fill(~seen, 0).long()
        at = (rows // page, rows % page)
        values = held.codes.view(torch.uint8)[at].view(torch.float8_e4m3fn).float()
        if held.scales is not None:
            tiles = held.scales[at]
            values = (values.view(*tiles.shape, -1) * tiles[..., None]).flatten(2)
        stored = held.rope.dtype
        rope = held.rope.view(torch.uint8)[at].view(stored).float() if stored.itemsize == 1 else held.rope[at].float()
        keys = torch.cat((values, rope), -1).masked_fill_(~seen[..., None], 0.0)
        scores = torch.bmm(q[part].float(), keys.mT) * (scale * call.q_scale * call.k_scale)
        scores.masked_fill_(~seen[:, None], float("-inf"))
        top = scores.amax(-1, keepdim=True)
        p = torch.exp(scores - top.masked_fill(top.isneginf(), 0.0))
        total = p.sum(-1)
        lse[part] = top[..., 0] + torch.log(total)
        narrow = (p * factor).to(weights).float()
        found = torch.bmm(narrow, keys[..., :c]) * (call.k_scale / factor)
        found /= total.masked_fill(total == 0.0, 1.0)[..., None]
        if call.sink is not None:
            found *= torch.sigmoid(lse[part] - call.sink).masked_fill(total == 0.0, 0.0)[..., None]
        out[part] = found.to(torch.bfloat16)
    return out, lse
