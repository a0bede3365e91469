"""Simulated ``sparse_mqa``: each query gathers its own cache rows, invalid entries anywhere, optional sink."""

from __future__ import annotations

import torch
from torch import Tensor

from .sites import SITES, Sites, split_evenly
from .softmax import begin, finish, merge_splits, step

#: Queries gathered at once: bounds the memory to rows * block_k * (c + r) floats.
ROWS = 256


def sparse_mqa(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: Tensor | None = None,
    sink: Tensor | None = None,
    sites: Sites = SITES,
) -> tuple[Tensor, Tensor]:
    """Shapes: q [s, h, c+r], kv [n, c+r], indices int32 [s, k], lengths int32 [s], sink fp32 [h].

    Returns out [s, h, c] in the dtype of ``q`` and lse fp32 [s, h], natural log, without the sink.
    """
    q, kv, _ = sites.inputs(q, kv, kv)
    indices = sites.indices(indices, kv.shape[0])
    lengths = sites.counted(lengths, indices)
    factor = sites.scale(scale, q.shape[0])
    out = sites.allocate(torch.empty(*q.shape[:2], value_dim, dtype=q.dtype, device=q.device))
    lse = sites.allocate(torch.empty(q.shape[:2], dtype=torch.float32, device=q.device))
    for first in range(0, q.shape[0], ROWS):
        rows = torch.arange(first, min(first + ROWS, q.shape[0]), device=q.device)
        counts = None if lengths is None else lengths[rows]
        tile_out, tile_lse = _rows(q[rows], kv, indices, rows, counts, factor, value_dim, sites)
        if sink is not None:
            tile_out = tile_out * sites.sink(tile_lse, sink)[..., None]
        kept = sites.rows_written(rows, q.shape[0])
        narrow = sites.output(tile_out, q.dtype)[kept - first]
        out[kept] = narrow
        lse[kept] = sites.lse(tile_lse[kept - first], narrow)
    return out, lse


def _rows(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    rows: Tensor,
    lengths: Tensor | None,
    scale: float,
    value_dim: int,
    sites: Sites,
) -> tuple[Tensor, Tensor]:
    """Output [rows, h, c] and LSE [rows, h] of some queries, fp32."""
    width = indices.shape[1]
    tile_q, factor = sites.prescale(q, scale)
    parts = []
    for split in split_evenly(sites.slots(width, sites.block_k), sites.splits):
        state = begin(tile_q, value_dim, sites)
        for start in split:
            slots = torch.arange(start, start + sites.block_k, device=q.device)
            counted = sites.inside(slots, width).expand(len(rows), -1)
            if lengths is not None:
                counted = counted & (slots < lengths[:, None])
            entry = sites.entries(indices, slots.clamp(max=width - 1))[rows].long()
            seen = sites.seen(sites.valid(entry, kv.shape[0]) & counted, slots)
            if sites.skip(seen):
                continue
            gathered = _gather(kv, entry, seen, sites)
            values = sites.values(gathered, value_dim)
            state = step(state, tile_q.float(), gathered, values, seen[:, None, :], factor, q.dtype, sites)
        parts.append((*finish(state, sites), bool(split)))
    return merge_splits(parts, sites)


def _gather(kv: Tensor, entry: Tensor, seen: Tensor, sites: Sites) -> Tensor:
    """Cache rows [rows, n, c+r] as fp32; zeros for entries that are not seen."""
    address = torch.where(seen, sites.address(entry, kv.shape[0]), torch.zeros_like(entry))
    loaded = sites.gather(kv, address.clamp(0, kv.shape[0] - 1)).float()
    return loaded.masked_fill(~sites.keep(seen)[..., None], 0.0)
