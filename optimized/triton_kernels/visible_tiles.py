"""Which key tiles a query tile has to visit under a bit-packed mask: found once for all heads.

The mask is [b, s_padded, words] int32: bit ``j & 31`` of word ``j >> 5`` lets query row i of the request see key j.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .tiles import locate_tile

#: Mask words read in one step.
_STEP = 4


@triton.jit
def load_bits(mask_ptr, rows, stride, live, word, words, WORDS: tl.constexpr):
    """[rows, WORDS, 32] 0 or 1: the mask bits of ``WORDS`` words from ``word`` on; 0 for rows that are not live."""
    at = word + tl.arange(0, WORDS)
    ptrs = mask_ptr + rows.to(tl.int64)[:, None] * stride + at[None, :]
    packed = tl.load(ptrs, mask=live[:, None] & (at < words)[None, :], other=0)
    return (packed[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1


@triton.jit
def _visible_tiles_kernel(
    mask_ptr, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, seen_ptr, s, b, words, mask_stride_b, mask_stride_s, slots,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = WORDS * 32 // BLOCK_N
    tile = tl.program_id(0)
    request, first, _, q_len, _, k_len = locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    rows = first + tl.arange(0, BLOCK_M)
    in_request = rows < q_len
    mask_ptr += request.to(tl.int64) * mask_stride_b
    limit = tl.minimum(k_len, words * 32)
    if CAUSAL:
        limit = tl.minimum(limit, first + BLOCK_M + k_len - q_len)
    limit = tl.where(first < q_len, limit, 0)

    count = 0
    slot_0 = tile.to(tl.int64) * slots
    for start in range(0, limit, WORDS * 32):
        bits = load_bits(mask_ptr, rows, mask_stride_s, in_request, start // 32, words, WORDS)
        lane = tl.arange(0, 32)
        keys = start + tl.arange(0, WORDS)[:, None] * 32 + lane[None, :]
        visible = (bits != 0) & (keys < k_len)[None, :, :]
        if CAUSAL:
            visible = visible & (keys[None, :, :] <= (rows + (k_len - q_len))[:, None, None])
        seen = tl.sum(tl.max(visible.to(tl.int32), 0) << lane[None, :], 1)  # [WORDS] union of the rows
        seen = tl.reshape(seen, [TILES, BLOCK_N // 32])
        occupied = tl.max((seen != 0).to(tl.int32), 1)
        slot = slot_0 + count + tl.cumsum(occupied, 0) - occupied
        tl.store(starts_ptr + slot, start + tl.arange(0, TILES) * BLOCK_N, mask=occupied != 0)
        seen_ptrs = seen_ptr + slot[:, None] * (BLOCK_N // 32) + tl.arange(0, BLOCK_N // 32)[None, :]
        tl.store(seen_ptrs, seen, mask=(occupied != 0)[:, None])
        count += tl.sum(occupied, 0)
    tl.store(counts_ptr + tile, count)


class VisibleTiles(NamedTuple):
    """For every query tile, the key tiles in which some row of it sees some key; beyond its count they are unset."""

    counts: torch.Tensor
    """[tiles] int32"""
    starts: torch.Tensor
    """[tiles, slots] int32: first key of each key tile, ascending."""
    seen: torch.Tensor
    """[tiles, slots, BLOCK_N / 32] int32: bits of the keys that some row of the query tile sees."""


def visible_tiles(
    mask: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    s: int,
    tiles: int,
    causal: bool,
    rows: int,
    columns: int,
) -> VisibleTiles:
    """List the visible tiles of ``tiles`` query tiles of ``rows`` queries, against key tiles of ``columns`` keys."""
    step = max(_STEP, columns // 32)
    slots = -(-max(mask.size(2), 1) // (columns // 32))
    found = VisibleTiles(
        torch.empty((tiles,), dtype=torch.int32, device=mask.device),
        torch.empty((tiles, slots), dtype=torch.int32, device=mask.device),
        torch.empty((tiles, slots, columns // 32), dtype=torch.int32, device=mask.device),
    )
    _visible_tiles_kernel[(tiles,)](
        mask, cu_q, cu_k, *found, s, cu_q.size(0) - 1, mask.size(2), mask.stride(0), mask.stride(1), slots,
        CAUSAL=causal, BLOCK_M=rows, BLOCK_N=columns, WORDS=step, num_warps=8,
    )  # fmt: skip
    return found
