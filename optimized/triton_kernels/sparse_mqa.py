"""Sparse MQA over a latent cache: each query attends to its own list of cache rows, shared by all heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..latent_rows import SparseCall
from . import launch
from .checks import ATTENTION_DTYPES, check_at_least, check_tensor
from .padding import padded
from .sparse_mqa_quantised import sparse_mqa_quantised
from .tiles import LOG2_E, accumulate, load_rows, normalise


@triton.jit
def _sparse_mqa_kernel(
    q_ptr, kv_ptr, indices_ptr, lengths_ptr, sink_ptr, out_ptr, lse_ptr, scale_log2, n, k, h,
    q_stride_s, q_stride_h, kv_stride_n, indices_stride_s,
    C: tl.constexpr, R: tl.constexpr, C_BLOCK: tl.constexpr, R_BLOCK: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, HAS_SINK: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Head blocks of one query run side by side: they gather the same rows.
    head_blocks = tl.cdiv(h, BLOCK_H)
    query = (tl.program_id(0) // head_blocks).to(tl.int64)
    heads = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    real = heads < h
    q_ptr += query * q_stride_s
    indices_ptr += query * indices_stride_s
    q_c = load_rows(q_ptr, heads, q_stride_h, real, 0, C, C_BLOCK, True)
    if R > 0:
        q_r = load_rows(q_ptr, heads, q_stride_h, real, C, C + R, R_BLOCK, True)
    length = k
    if HAS_LENGTHS:
        length = tl.minimum(k, tl.load(lengths_ptr + query))

    acc = tl.zeros([BLOCK_H, C_BLOCK], tl.float32)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    for start in range(0, length, BLOCK_K):
        slots = start + tl.arange(0, BLOCK_K)
        rows = tl.load(indices_ptr + slots, mask=slots < length, other=-1)
        valid = (rows >= 0) & (rows < n)
        values = load_rows(kv_ptr, rows, kv_stride_n, valid, 0, C, C_BLOCK, True)
        scores = tl.dot(q_c, tl.trans(values), input_precision="ieee")
        if R > 0:
            k_r = load_rows(kv_ptr, rows, kv_stride_n, valid, C, C + R, R_BLOCK, True)
            scores = tl.dot(q_r, tl.trans(k_r), scores, input_precision="ieee")
        scores = tl.where(valid[None, :], scores * scale_log2, float("-inf"))
        acc, top, total = accumulate(acc, top, total, scores, values)

    out, lse = normalise(acc, top, total)
    if HAS_SINK:
        # exp(lse) / (exp(lse) + exp(sink)); a row without keys stays 0 whatever the sink.
        sink = tl.load(sink_ptr + heads, mask=real, other=0.0)
        kept = 1.0 / (1.0 + tl.exp2((sink - tl.where(total == 0.0, 0.0, lse)) * LOG2_E))
        out = tl.where((total == 0.0)[:, None], 0.0, out * kept[:, None])
    out_rows = query * h + heads
    columns = tl.arange(0, C_BLOCK)
    out_ptrs = out_ptr + out_rows[:, None] * C + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & (columns < C)[None, :])
    tl.store(lse_ptr + out_rows, lse, mask=real)


def sparse_mqa(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over the cache rows its indices name; values are the first columns of the keys.

    Shapes:
        q: [s, h, c+r], kv: [n, c+r], one of bf16, fp16, fp32; all strides but the inner are free
        cache_format: fp8_e4m3 takes q [s, h, c+r] and kv [n, c+r] in e4m3, with a scale each; fp8_ds_mla takes q in
            bf16 and kv uint8 [n, width], c codes, c/128 fp32 scales and r rotated dims in bf16; both also take pages
            [p, page, width] of such rows; see ``sparse_mqa_quantised``
        indices: [s, k] int32 rows of kv; an entry < 0 or >= n is ignored wherever it stands, duplicates count each time
        value_dim: c
        lengths: [s] int32; only the first lengths[s] entries of a row count
        sink: [h] fp32, natural units; out is multiplied by exp(lse) / (exp(lse) + exp(sink)), lse is not changed
        scale: multiplies q.k
    Returns out [s, h, c] in the dtype of q (bf16 for e4m3) and lse [s, h] fp32, natural log; (0, -inf) for a query
    without valid entry. Only named rows are read.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    if cache_format != "model":
        call = SparseCall(q, kv, indices, value_dim, lengths, sink, cache_format, q_scale, k_scale)
        return sparse_mqa_quantised(call, scale=scale)
    _check(q, kv, indices, value_dim, lengths, sink, q_scale, k_scale)
    s, h, width = q.shape
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s == 0:
        return out, lse
    c_block, r_block = padded(value_dim), padded(width - value_dim)
    config = launch.sparse(h, c_block, r_block, q.element_size(), launch.room(q.device))
    _sparse_mqa_kernel[(s * triton.cdiv(h, config.rows),)](
        q, kv, indices, lengths, sink, out, lse, scale * LOG2_E.value, kv.size(0), indices.size(1), h,
        q.stride(0), q.stride(1), kv.stride(0), indices.stride(0),
        C=value_dim, R=width - value_dim, C_BLOCK=c_block, R_BLOCK=r_block,
        HAS_LENGTHS=lengths is not None, HAS_SINK=sink is not None, BLOCK_H=config.rows, BLOCK_K=config.columns,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse


def _check(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    value_dim: int,
    lengths: torch.Tensor | None,
    sink: torch.Tensor | None,
    q_scale: float,
    k_scale: float,
) -> None:
    if (q_scale, k_scale) != (1.0, 1.0):
        raise ValueError(f"q_scale, k_scale: expected 1 for a cache of the model's dtype, got {q_scale} and {k_scale}")
    check_tensor("q", q, "[s, h, c+r]", (None, None, None), ATTENTION_DTYPES, q.device)
    s, h, width = q.shape
    check_tensor("kv", kv, "[n, c+r]", (None, width), (q.dtype,), q.device)
    check_tensor("indices", indices, "[s, k]", (s, None), (torch.int32,), q.device)
    check_at_least("heads", h, 1)
    if not 1 <= value_dim <= width:
        raise ValueError(f"value_dim: expected 1 to {width}, the width of q and kv, got {value_dim}")
    if lengths is not None:
        check_tensor("lengths", lengths, "[s]", (s,), (torch.int32,), q.device)
    if sink is not None:
        check_tensor("sink", sink, "[h]", (h,), (torch.float32,), q.device)
