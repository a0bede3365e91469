"""Which key tiles a query tile has to visit under a bit-packed mask: found once for all heads.

The mask is [b, s_padded, words] int32: bit ``j & 31`` of word ``j >> 5`` lets query row i of the request see key j.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .. import triton_runtime
from .relaunch import launch
from .tiles import locate_tile

#: Mask words of a row read in one step: 128 bytes; interpreted a few, so that small masks have several steps too.
_STEP, _STEP_INTERPRETED = 32, 4


@triton.jit
def load_bits(mask_ptr, rows, stride, live, word, words, WORDS: tl.constexpr):
    """[rows, WORDS, 32] 0 or 1: the mask bits of ``WORDS`` words from ``word`` on; 0 for rows that are not live."""
    at = word + tl.arange(0, WORDS)
    ptrs = mask_ptr + rows.to(tl.int64)[:, None] * stride + at[None, :]
    packed = tl.load(ptrs, mask=live[:, None] & (at < words)[None, :], other=0)
    return (packed[:, :, None] >> tl.arange(0, 32)[None, None, :]) & 1


@triton.jit(do_not_specialize=["s", "b", "words", "mask_stride_b", "mask_stride_s", "slots"])
def _visible_tiles_kernel(
    mask_ptr, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, seen_ptr, s, b, words, mask_stride_b, mask_stride_s, slots,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = WORDS * 32 // BLOCK_N
    tile = tl.program_id(0)
    request, first, _, q_len, _, k_len = locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    rows = first + tl.arange(0, BLOCK_M)
    mask_ptr += request.to(tl.int64) * mask_stride_b
    # how many keys, from the first on, a row may see at most
    reach = rows * 0 + tl.minimum(k_len, words * 32)
    if CAUSAL:
        reach = tl.minimum(reach, rows + 1 + k_len - q_len)
    reach = tl.where(rows < q_len, reach, 0)

    count = 0
    slot_0 = tile.to(tl.int64) * slots
    for start in range(0, tl.max(reach, 0), WORDS * 32):
        at = start // 32 + tl.arange(0, WORDS)
        left = reach[:, None] - at[None, :] * 32
        ptrs = mask_ptr + rows.to(tl.int64)[:, None] * mask_stride_s + at[None, :]
        packed = tl.load(ptrs, mask=left > 0, other=0)
        kept = tl.where(left < 32, (1 << (left & 31)) - 1, -1)
        seen = tl.reduce_or(packed & kept, 0)  # [WORDS] union of the rows
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
    slots = -(-max(mask.size(2), 1) // (columns // 32))
    found = VisibleTiles(
        torch.empty((tiles,), dtype=torch.int32, device=mask.device),
        torch.empty((tiles, slots), dtype=torch.int32, device=mask.device),
        torch.empty((tiles, slots, columns // 32), dtype=torch.int32, device=mask.device),
    )
    arguments = (
        mask, cu_q, cu_k, *found, s, cu_q.size(0) - 1, mask.size(2), mask.stride(0), mask.stride(1), slots,
    )  # fmt: skip
    step = _STEP_INTERPRETED if triton_runtime.interpreted() else _STEP
    constants = {"CAUSAL": causal, "BLOCK_M": rows, "BLOCK_N": columns, "WORDS": max(step, columns // 32)}
    launch(_visible_tiles_kernel, tiles, arguments, constants, num_warps=8)
    return found
