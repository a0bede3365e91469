"""Simulated ``sparse_mqa``: each query gathers its own cache rows, invalid entries anywhere, optional sink."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .latent import decode, tiles_of
from .sites import SITES, Sites, split_evenly
from .softmax import begin, finish, merge_splits, step

#: Queries gathered at once: bounds the memory to rows * block_k * (c + r) floats.
ROWS = 256


class Cache(NamedTuple):
    """A cache as pages [p, page, width]; one without pages has pages of one row."""

    kv: Tensor
    cache_format: str
    k_scale: float

    @property
    def rows(self) -> int:
        return self.kv.shape[0] * self.kv.shape[1]


def sparse_mqa(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: Tensor | None = None,
    sink: Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    sites: Sites = SITES,
) -> tuple[Tensor, Tensor]:
    """Shapes: q [s, h, c+r], kv [n, width] or [p, page, width], indices int32 [s, k], lengths int32 [s], sink fp32 [h].

    Returns out [s, h, c] in the dtype of ``q`` (bf16 for e4m3) and lse fp32 [s, h], natural log, without the sink.
    """
    q, kv, _ = sites.inputs(q, kv, kv)
    if cache_format != "model":
        # Exact in fp32; the answer is bf16 as that of a bf16 query.
        q = sites.latent.query(q.float(), q_scale) if cache_format == "fp8_e4m3" else q
    cache = Cache(kv.unsqueeze(1) if kv.dim() == 2 else kv, cache_format, k_scale)
    dtype = q.dtype if cache_format == "model" else torch.bfloat16
    indices = sites.indices(indices, cache.rows)
    lengths = sites.counted(lengths, indices)
    factor = sites.scale(scale, q.shape[0])
    out = sites.allocate(torch.empty(*q.shape[:2], value_dim, dtype=dtype, device=q.device))
    lse = sites.allocate(torch.empty(q.shape[:2], dtype=torch.float32, device=q.device))
    for first in range(0, q.shape[0], ROWS):
        rows = torch.arange(first, min(first + ROWS, q.shape[0]), device=q.device)
        counts = None if lengths is None else lengths[rows]
        tile_out, tile_lse = _rows(q[rows], cache, indices, rows, counts, factor, value_dim, dtype, sites)
        if sink is not None:
            tile_out = tile_out * sites.sink(tile_lse, sink)[..., None]
        kept = sites.rows_written(rows, q.shape[0])
        narrow = sites.output(tile_out, dtype)[kept - first]
        out[kept] = narrow
        lse[kept] = sites.lse(tile_lse[kept - first], narrow)
    return out, lse


def _rows(
    q: Tensor,
    cache: Cache,
    indices: Tensor,
    rows: Tensor,
    lengths: Tensor | None,
    scale: float,
    value_dim: int,
    dtype: torch.dtype,
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
            seen = sites.seen(sites.valid(entry, cache.rows) & counted, slots)
            if sites.skip(seen):
                continue
            keys, values = _gather(cache, entry, seen, value_dim, sites)
            state = step(state, tile_q.float(), keys, values, seen[:, None, :], factor, dtype, sites)
        parts.append((*finish(state, sites), bool(split)))
    return merge_splits(parts, sites)


def _gather(cache: Cache, entry: Tensor, seen: Tensor, c: int, sites: Sites) -> tuple[Tensor, Tensor]:
    """Keys [rows, n, c+r] and values [rows, n, c] as fp32; zeros for entries that are not seen."""
    address = torch.where(seen, sites.address(entry, cache.rows), torch.zeros_like(entry)).clamp(0, cache.rows - 1)
    unseen = ~sites.keep(seen)[..., None]
    if cache.cache_format == "model":
        loaded = sites.gather(cache.kv[:, 0], address).float().masked_fill(unseen, 0.0)
        return loaded, sites.values(loaded, c)
    page = cache.kv.shape[1]
    held = cache.kv.view(torch.uint8)
    raw = held[address // page, address % page]
    first = c + 4 * tiles_of(c)
    for row, columns in ((sites.latent.scale_row, slice(c, first)), (sites.latent.rope_row, slice(first, None))):
        if row is not None:
            other = row(address, cache.rows).clamp(0, cache.rows - 1)
            raw[..., columns] = held[other // page, other % page][..., columns]
    keys, values = decode(raw, cache.cache_format, c, cache.k_scale, sites.latent)
    return keys.masked_fill(unseen, 0.0), values.masked_fill(unseen, 0.0)
