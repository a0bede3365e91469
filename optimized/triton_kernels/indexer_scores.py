"""Lightning-indexer scores: a weighted sum over heads of rectified dot products, in windows of keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..pages import check_scales, check_windows
from . import launch
from .checks import check_at_least, check_tensor
from .padding import padded
from .tiles import load_rows

_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


@triton.jit
def _indexer_scores_kernel(
    q_ptr, k_ptr, k_scale_ptr, weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, scores_ptr, s, t, heads, width,
    q_stride_s, q_stride_i, k_stride_t, weights_stride_s, q_scale_stride_s,
    E: tl.constexpr, E_BLOCK: tl.constexpr, WIDEN: tl.constexpr, HAS_Q_SCALE: tl.constexpr, COMPRESSED: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    # Query tiles of one key tile run side by side, so the keys are read from memory once.
    query_tiles = tl.cdiv(s, BLOCK_S)
    rows = tl.program_id(0) % query_tiles * BLOCK_S + tl.arange(0, BLOCK_S)
    columns = tl.program_id(0) // query_tiles * BLOCK_T + tl.arange(0, BLOCK_T)
    in_rows = rows < s
    in_columns = columns < t
    ks = tl.load(ks_ptr + rows, mask=in_rows, other=0)
    ke = tl.load(ke_ptr + rows, mask=in_rows, other=0)
    window = (columns[None, :] >= ks[:, None]) & (columns[None, :] < ke[:, None]) & in_columns[None, :]
    # A tile outside all its windows is only filled with -inf.
    heads = tl.where(tl.max(tl.max(window.to(tl.int32), 1), 0) != 0, heads, 0)

    keys = load_rows(k_ptr, columns, k_stride_t, in_columns, 0, E, E_BLOCK, True)
    if WIDEN:
        keys = keys.to(tl.float16)
    keys = tl.trans(keys)
    acc = tl.zeros([BLOCK_S, BLOCK_T], tl.float32)
    for head in range(heads):
        queries = load_rows(q_ptr, rows, q_stride_s, in_rows, 0, E, E_BLOCK, True)
        if WIDEN:
            queries = queries.to(tl.float16)
        product = tl.dot(queries, keys, input_precision="ieee")
        weight = tl.load(weights_ptr + rows.to(tl.int64) * weights_stride_s + head, mask=in_rows, other=0.0)
        if HAS_Q_SCALE:
            weight *= tl.load(q_scale_ptr + rows.to(tl.int64) * q_scale_stride_s + head, mask=in_rows, other=0.0)
        # Not maximum(product, 0), which would turn NaN into 0.
        acc += weight[:, None] * tl.where(product < 0.0, 0.0, product)
        q_ptr += q_stride_i

    k_scale = tl.load(k_scale_ptr + columns, mask=in_columns, other=0.0)
    scores = tl.where(window, acc * k_scale[None, :], float("-inf"))
    ptrs = scores_ptr + rows.to(tl.int64)[:, None] * width + columns[None, :]
    if COMPRESSED:
        # A row starts at its first key; what is behind its window was filled before.
        at = columns[None, :] - tl.maximum(ks, 0)[:, None]
        ptrs = scores_ptr + rows.to(tl.int64)[:, None] * width + at
        tl.store(ptrs, scores, mask=window & in_rows[:, None] & (at < width))
    else:
        tl.store(ptrs, scores, mask=in_rows[:, None] & in_columns[None, :])


def indexer_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    *,
    q_scale: torch.Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[torch.Tensor]:
    """``scores[s, t] = k_scale[t] * sum_i weights[s, i] * relu(q[s, i] . k[t])`` for ks[s] <= t < ke[s], else -inf.

    Shapes:
        q: [s, i, e], k: [t, e], both bf16, fp16, fp32 or float8_e4m3fn; all strides but the inner are free
        k_scale: [t] fp32, weights: [s, i] fp32, ks, ke: [s] int32
        q_scale: [s, i] fp32, multiplies the weights
        max_seqlen_k: columns of compressed scores, whose rows start at ks[s]; a window beyond them is cut on a GPU
    Returns (scores [s, t] or [s, max_seqlen_k] fp32,), every element written; nothing outside a window matters.
    E4M3 is widened to fp16, which is exact, since Hopper's fp8 products are summed with fewer than 24 bits.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit, and on the CPU for windows without
    room and scales that are none. Never waits for the device.
    """
    check_tensor("q", q, "[s, i, e]", (None, None, None), _DTYPES, q.device)
    s, i, e = q.shape
    check_tensor("k", k, "[t, e]", (None, e), (q.dtype,), q.device)
    t = k.size(0)
    check_tensor("k_scale", k_scale, "[t]", (t,), (torch.float32,), q.device)
    check_tensor("weights", weights, "[s, i]", (s, i), (torch.float32,), q.device)
    check_tensor("ks", ks, "[s]", (s,), (torch.int32,), q.device)
    check_tensor("ke", ke, "[s]", (s,), (torch.int32,), q.device)
    check_at_least("indexer head dim", e, 1)
    if q_scale is not None:
        check_tensor("q_scale", q_scale, "[s, i]", (s, i), (torch.float32,), q.device)
        check_scales("q_scale", q_scale)
    if max_seqlen_k is None:
        scores = torch.empty((s, t), dtype=torch.float32, device=q.device)
    else:
        check_windows(ks, ke, t, max_seqlen_k)
        scores = torch.full((s, max_seqlen_k), float("-inf"), dtype=torch.float32, device=q.device)
    if s == 0 or t == 0:
        return (scores,)
    widen = q.dtype == torch.float8_e4m3fn
    config = launch.indexer(padded(e), 2 if widen else q.element_size(), launch.room(q.device))
    _indexer_scores_kernel[(triton.cdiv(s, config.rows) * triton.cdiv(t, config.columns),)](
        q, k, k_scale, weights, q_scale, ks, ke, scores, s, t, i, scores.size(1),
        q.stride(0), q.stride(1), k.stride(0), weights.stride(0), 0 if q_scale is None else q_scale.stride(0),
        E=e, E_BLOCK=padded(e), WIDEN=widen, HAS_Q_SCALE=q_scale is not None, COMPRESSED=max_seqlen_k is not None,
        BLOCK_S=config.rows, BLOCK_T=config.columns,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return (scores,)
