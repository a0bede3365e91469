"""MHA under a bit-packed mask AND causality; key tiles that no row of a query tile may see are never visited."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_tensor
from .dense_mha import check_attention, query_tiles
from .padding import padded, split
from .tiles import LOG2_E, accumulate, load_rows, locate_tile, normalise, scores_of
from .visible_tiles import load_bits, visible_tiles


@triton.jit
def _masked_mha_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, seen_ptr,
    scale_log2, s, b, words, slots,
    q_stride_s, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, mask_stride_b, mask_stride_s, h,
    D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr, V: tl.constexpr, V_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    WORDS: tl.constexpr = BLOCK_N // 32
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    request, first, q_start, q_len, k_start, k_len = locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    if first >= q_len:
        return
    rows = first + tl.arange(0, BLOCK_M)
    in_request = rows < q_len
    q_ptr += q_start.to(tl.int64) * q_stride_s + head * q_stride_h
    k_ptr += k_start.to(tl.int64) * k_stride_t + head * k_stride_h
    v_ptr += k_start.to(tl.int64) * v_stride_t + head * v_stride_h
    mask_ptr += request.to(tl.int64) * mask_stride_b
    q_main = load_rows(q_ptr, rows, q_stride_s, in_request, 0, D, D_MAIN, True)
    q_rest = q_main
    if D_REST > 0:
        q_rest = load_rows(q_ptr, rows, q_stride_s, in_request, D_MAIN, D, D_REST, True)

    acc = tl.zeros([BLOCK_M, V_BLOCK], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    slot_0 = tile.to(tl.int64) * slots
    lane = tl.arange(0, BLOCK_N)
    for slot in range(tl.load(counts_ptr + tile)):
        start = tl.load(starts_ptr + slot_0 + slot)
        seen = tl.load(seen_ptr + (slot_0 + slot) * WORDS + lane // 32)
        # A key that no row of the tile sees is not read: 0 times the NaN of an unused cache row would be NaN.
        live = ((seen >> (lane % 32)) & 1) != 0
        keys = start + lane
        scores = scores_of(q_main, q_rest, k_ptr, keys, k_stride_t, live, scale_log2, D, D_MAIN, D_REST, True)
        bits = load_bits(mask_ptr, rows, mask_stride_s, in_request, start // 32, words, WORDS)
        visible = (tl.reshape(bits, [BLOCK_M, BLOCK_N]) != 0) & live[None, :]
        if CAUSAL:
            visible = visible & (keys[None, :] <= rows[:, None] + (k_len - q_len))
        scores = tl.where(visible, scores, float("-inf"))
        values = load_rows(v_ptr, keys, v_stride_t, live, 0, V, V_BLOCK, True)
        acc, top, total = accumulate(acc, top, total, scores, values)

    out, lse = normalise(acc, top, total)
    out_rows = (q_start + rows).to(tl.int64) * h + head
    columns = tl.arange(0, V_BLOCK)
    out_ptrs = out_ptr + out_rows[:, None] * V + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_request[:, None] & (columns < V)[None, :])
    tl.store(lse_ptr + out_rows, lse, mask=in_request)


def masked_mha(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """dense_mha with a mask: query row i of a request sees key j if bit ``j & 31`` of ``mask[request, i, j >> 5]`` is
    set and, with ``causal``, j <= i + T - S.

    Shapes:
        q: [s, h, d], k: [t, h, d], v: [t, h, v], one of bf16, fp16, fp32; token and head strides are free
        mask: [b, s_padded, words] int32, words of one row adjacent; bits, rows and words beyond a request's counts
            are never used, and keys beyond the last word are not seen
        cu_q, cu_k: [b+1] int32 prefix sums of query and key counts
        scale: multiplies q.k
    Returns out [s, h, v] in the dtype of q and lse [s, h] fp32, natural log; (0, -inf) for a query without keys and
    for rows at or beyond cu_q[b]. A key row seen by no query of a tile is not read.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_attention(q, k, v, cu_q, cu_k)
    (s, h, d), value_dim, b = q.shape, v.size(2), cu_q.size(0) - 1
    check_tensor("mask", mask, "[b, s_padded, words]", (b, None, None), (torch.int32,), q.device)
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s == 0:
        return out, lse
    (d_main, d_rest), v_block = split(d), padded(value_dim)
    config = launch.dense(d_main + d_rest, v_block, q.element_size(), launch.room(q.device))
    tiles = query_tiles(s, b, config.rows)
    found = visible_tiles(mask, cu_q, cu_k, s=s, tiles=tiles, causal=causal, rows=config.rows, columns=config.columns)
    _masked_mha_kernel[(tiles, h)](
        q, k, v, mask, out, lse, cu_q, cu_k, *found, scale * LOG2_E.value, s, b, mask.size(2), found.starts.size(1),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), mask.stride(0), mask.stride(1), h,
        D=d, D_MAIN=d_main, D_REST=d_rest, V=value_dim, V_BLOCK=v_block,
        CAUSAL=causal, BLOCK_M=config.rows, BLOCK_N=config.columns,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse
