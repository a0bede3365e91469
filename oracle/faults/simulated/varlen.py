"""Simulated ``dense_mha`` and ``masked_mha``: ragged batches, causal tile skipping, bit-packed masks, split keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .sites import SITES, Sites, split_evenly
from .softmax import begin, finish, merge_splits, step

#: Last visible key where nothing is causal: the request's length alone limits.
EVERY_KEY = 2**31 - 1


class Request(NamedTuple):
    """One request of the batch: its number, first packed query and key, and how many it has of each."""

    number: int
    q_start: int
    q_len: int
    k_start: int
    k_len: int


def dense_mha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    scale: float,
    causal: bool = True,
    sites: Sites = SITES,
) -> tuple[Tensor, Tensor]:
    """Shapes: q [s, h, d], k [t, h, d], v [t, h, v], cu_q and cu_k int32 [b+1]. Returns out [s, h, v], lse [s, h]."""
    return _attend(q, k, v, None, cu_q, cu_k, scale, causal, sites)


def masked_mha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    scale: float,
    causal: bool = True,
    sites: Sites = SITES,
) -> tuple[Tensor, Tensor]:
    """As ``dense_mha`` with mask int32 [b, s_padded, words]: bit (j & 31) of word (j >> 5) lets a query see key j."""
    return _attend(q, k, v, mask, cu_q, cu_k, scale, causal, sites)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    cu_q: Tensor,
    cu_k: Tensor,
    scale: float,
    causal: bool,
    sites: Sites,
) -> tuple[Tensor, Tensor]:
    q, k, v = sites.inputs(q, k, v)
    shape = (q.shape[0], q.shape[1], v.shape[2])
    out = sites.allocate(torch.empty(shape, dtype=q.dtype, device=q.device))
    lse = sites.allocate(torch.empty(shape[:2], dtype=torch.float32, device=q.device))
    starts_q, starts_k = cu_q.tolist(), cu_k.tolist()
    for number in range(len(starts_q) - 1):
        q_start, q_end = sites.query_range(starts_q, number)
        k_start, k_end = sites.key_range(starts_k, number)
        request = Request(number, q_start, q_end - q_start, k_start, k_end - k_start)
        for first in range(0, request.q_len, sites.block_q):
            rows = torch.arange(first, min(first + sites.block_q, request.q_len), device=q.device)
            tile_out, tile_lse = _query_tile(q, k, v, mask, rows, request, scale, causal, sites)
            kept = sites.rows_written(rows, request.q_len)
            target = sites.target(q_start, number) + kept
            narrow = sites.output(tile_out.transpose(0, 1), q.dtype)[kept - first]
            out[target] = narrow
            lse[target] = sites.lse(tile_lse.transpose(0, 1)[kept - first], narrow)
    return out, lse


def _query_tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    rows: Tensor,
    request: Request,
    scale: float,
    causal: bool,
    sites: Sites,
) -> tuple[Tensor, Tensor]:
    """Output [h, rows, v] and LSE [h, rows] of one tile of queries, fp32."""
    number, _, q_len, _, k_len = request
    tile_q, factor = sites.prescale(q[request.q_start + rows].transpose(0, 1), sites.scale(scale, q_len))
    last = torch.full_like(rows, EVERY_KEY)
    if sites.causal(causal, q_len, k_len):
        last = sites.last_key(rows, q_len, k_len)
    starts = sites.tiles(sites.stop(last, k_len), sites.block_k)
    parts = []
    for split in split_evenly(starts, sites.splits):
        state = begin(tile_q, v.shape[2], sites)
        for start in split:
            cols = torch.arange(start, start + sites.block_k, device=q.device)
            seen = _visible(mask, number, rows, cols, last, k_len, sites)
            if sites.skip(seen):
                continue
            tile_k, tile_v = _load(k, v, request.k_start + cols, sites.keep(seen.any(0)))
            state = step(state, tile_q.float(), tile_k, tile_v, seen, factor, q.dtype, sites)
        parts.append((*finish(state, sites), bool(split)))
    return merge_splits(parts, sites)


def _visible(
    mask: Tensor | None, request: int, rows: Tensor, cols: Tensor, last: Tensor, k_len: int, sites: Sites
) -> Tensor:
    """Which keys of the tile each row sees, bool [rows, cols]."""
    seen = sites.diagonal(cols, last)
    if mask is not None:
        seen = sites.combine_masks(sites.bits(mask, request, rows, cols), seen)
    return sites.seen(seen & sites.inside(cols, k_len), cols)


def _load(k: Tensor, v: Tensor, positions: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of K and V as fp32 [h, n, d] and [h, n, v]; zeros where ``keep`` is unset or the position does not exist."""
    positions = positions.masked_fill(positions < 0, k.shape[0])
    keep = (keep & (positions < k.shape[0]))[:, None, None]
    safe = positions.clamp(max=max(k.shape[0] - 1, 0))
    if k.shape[0] == 0:
        return _nothing(k, len(positions)), _nothing(v, len(positions))
    tile_k = k[safe].float().masked_fill(~keep, 0.0).transpose(0, 1)
    return tile_k, v[safe].float().masked_fill(~keep, 0.0).transpose(0, 1)


def _nothing(x: Tensor, rows: int) -> Tensor:
    return torch.zeros(x.shape[1], rows, x.shape[2], dtype=torch.float32, device=x.device)


__all__: Sequence[str] = ("dense_mha", "masked_mha")
