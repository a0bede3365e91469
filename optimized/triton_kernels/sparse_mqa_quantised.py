"""Sparse MQA over a quantised latent cache: rows of bytes, or pages of such rows, decoded as they are gathered."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..latent_rows import SparseCall, check_quantised, views
from . import launch
from .padding import padded
from .tiles import LOG2_E, accumulate, load_rows, normalise


@triton.jit
def _sparse_mqa_quantised_kernel(
    q_ptr, codes_ptr, scales_ptr, rope_ptr, indices_ptr, lengths_ptr, sink_ptr, out_ptr, lse_ptr,
    scale_log2, value_scale, n, k, h,
    q_stride_s, q_stride_h, codes_stride_p, codes_stride_n, scales_stride_p, scales_stride_n, rope_stride_p,
    rope_stride_n, indices_stride_s,
    C: tl.constexpr, R: tl.constexpr, C_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr, TILES: tl.constexpr,
    T_BLOCK: tl.constexpr, PAGE: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_SINK: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Head blocks of one query run side by side: they gather the same rows.
    head_blocks = tl.cdiv(h, BLOCK_H)
    query = (tl.program_id(0) // head_blocks).to(tl.int64)
    heads = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    real = heads < h
    q_ptr += query * q_stride_s
    indices_ptr += query * indices_stride_s
    q_c = load_rows(q_ptr, heads, q_stride_h, real, 0, C, C_BLOCK, True).to(tl.bfloat16)
    if R > 0:
        q_r = load_rows(q_ptr, heads, q_stride_h, real, C, C + R, R_BLOCK, True).to(tl.bfloat16)
    length = k
    if HAS_LENGTHS:
        length = tl.minimum(k, tl.load(lengths_ptr + query))

    acc = tl.zeros([BLOCK_H, C_BLOCK], tl.float32)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    columns = tl.arange(0, C_BLOCK)
    rotated = tl.arange(0, R_BLOCK)
    tiles = tl.arange(0, T_BLOCK)
    for start in range(0, length, BLOCK_K):
        slots = start + tl.arange(0, BLOCK_K)
        rows = tl.load(indices_ptr + slots, mask=slots < length, other=-1)
        valid = (rows >= 0) & (rows < n)
        page = (rows // PAGE).to(tl.int64)
        slot = rows % PAGE

        at = page * codes_stride_p + slot * codes_stride_n
        codes = tl.load(
            codes_ptr + at[:, None] + columns[None, :], mask=valid[:, None] & (columns < C)[None, :], other=0.0
        )
        if TILES > 0:
            at = page * scales_stride_p + slot * scales_stride_n
            factor = tl.load(
                scales_ptr + at[:, None] + tiles[None, :], mask=valid[:, None] & (tiles < TILES)[None, :], other=0.0
            )
            parts = tl.reshape(codes.to(tl.float32), [BLOCK_K, T_BLOCK, C_BLOCK // T_BLOCK]) * factor[:, :, None]
            values = tl.reshape(parts, [BLOCK_K, C_BLOCK]).to(tl.bfloat16)
        else:
            values = codes.to(tl.bfloat16)
        scores = tl.dot(q_c, tl.trans(values), input_precision="ieee")
        if R > 0:
            at = page * rope_stride_p + slot * rope_stride_n
            k_r = tl.load(
                rope_ptr + at[:, None] + rotated[None, :], mask=valid[:, None] & (rotated < R)[None, :], other=0.0
            )
            scores = tl.dot(q_r, tl.trans(k_r.to(tl.bfloat16)), scores, input_precision="ieee")
        scores = tl.where(valid[None, :], scores * scale_log2, float("-inf"))
        acc, top, total = accumulate(acc, top, total, scores, values)

    out, lse = normalise(acc, top, total)
    out = out * value_scale
    if HAS_SINK:
        # exp(lse) / (exp(lse) + exp(sink)); a row without keys stays 0 whatever the sink.
        sink = tl.load(sink_ptr + heads, mask=real, other=0.0)
        kept = 1.0 / (1.0 + tl.exp2((sink - tl.where(total == 0.0, 0.0, lse)) * LOG2_E))
        out = tl.where((total == 0.0)[:, None], 0.0, out * kept[:, None])
    out_rows = query * h + heads
    out_ptrs = out_ptr + out_rows[:, None] * C + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & (columns < C)[None, :])
    tl.store(lse_ptr + out_rows, lse, mask=real)


def sparse_mqa_quantised(call: SparseCall, *, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``sparse_mqa`` of the formats fp8_e4m3 and fp8_ds_mla; out [s, h, c] bf16, lse [s, h] fp32, natural log.

    fp8_e4m3: codes are widened to bf16, which is exact, and both scales stand outside the products. fp8_ds_mla: a code
    times its tile's scale is rounded to bf16, which is exact where scales are powers of two.
    Raises ValueError for what does not fit, and on the CPU for scales in use that are none. Never waits for the device.
    """
    check_quantised(call)
    q, c = call.q, call.value_dim
    s, h, width = q.shape
    out = torch.empty((s, h, c), dtype=torch.bfloat16, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s == 0:
        return out, lse
    held = views(call)
    c_block, r_block = padded(c), padded(width - c)
    tiles = 0 if held.scales is None else held.scales.size(2)
    scales = held.codes if held.scales is None else held.scales
    config = launch.sparse(h, c_block, r_block, 2, launch.room(q.device))
    _sparse_mqa_quantised_kernel[(s * triton.cdiv(h, config.rows),)](
        q, held.codes, scales, held.rope, call.indices, call.lengths, call.sink, out, lse,
        scale * call.q_scale * call.k_scale * LOG2_E.value, call.k_scale, held.rows, call.indices.size(1), h,
        q.stride(0), q.stride(1), held.codes.stride(0), held.codes.stride(1), scales.stride(0), scales.stride(1),
        held.rope.stride(0), held.rope.stride(1), call.indices.stride(0),
        C=c, R=width - c, C_BLOCK=c_block, R_BLOCK=max(16, r_block), TILES=tiles,
        T_BLOCK=c_block // 128 if tiles > 1 else 1, PAGE=held.codes.size(1),
        HAS_LENGTHS=call.lengths is not None, HAS_SINK=call.sink is not None, BLOCK_H=config.rows,
        BLOCK_K=config.columns, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse
