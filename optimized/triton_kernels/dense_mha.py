"""Dense MHA over a ragged batch: out = softmax(scale * q k^T, causal) v, one program a query tile and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import ATTENTION_DTYPES, check_tensor
from .padding import padded, split
from .tiles import LOG2_E, accumulate, load_rows, locate_tile, normalise, scores_of


@triton.jit
def _dense_mha_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, scale_log2, s, b,
    q_stride_s, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, h,
    D: tl.constexpr, D_MAIN: tl.constexpr, D_REST: tl.constexpr, V: tl.constexpr, V_BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Late tiles see the most keys: started first, they leave no long tail.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    _, first, q_start, q_len, k_start, k_len = locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    if first >= q_len:
        return
    rows = first + tl.arange(0, BLOCK_M)
    in_request = rows < q_len
    q_ptr += q_start.to(tl.int64) * q_stride_s + head * q_stride_h
    k_ptr += k_start.to(tl.int64) * k_stride_t + head * k_stride_h
    v_ptr += k_start.to(tl.int64) * v_stride_t + head * v_stride_h
    q_main = load_rows(q_ptr, rows, q_stride_s, in_request, 0, D, D_MAIN, True)
    q_rest = q_main
    if D_REST > 0:
        q_rest = load_rows(q_ptr, rows, q_stride_s, in_request, D_MAIN, D, D_REST, True)

    # Every row of the tile sees the keys before ``whole``; none sees a key at or beyond ``limit``.
    whole = k_len
    limit = k_len
    if CAUSAL:
        whole = tl.minimum(k_len, tl.maximum(first + 1 + k_len - q_len, 0))
        limit = tl.minimum(k_len, first + BLOCK_M + k_len - q_len)
    whole = whole // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, V_BLOCK], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, whole, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        scores = scores_of(q_main, q_rest, k_ptr, keys, k_stride_t, keys, scale_log2, D, D_MAIN, D_REST, False)
        values = load_rows(v_ptr, keys, v_stride_t, keys, 0, V, V_BLOCK, False)
        acc, top, total = accumulate(acc, top, total, scores, values)
    for start in range(whole, limit, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        live = keys < limit
        scores = scores_of(q_main, q_rest, k_ptr, keys, k_stride_t, live, scale_log2, D, D_MAIN, D_REST, True)
        visible = live[None, :]
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


def dense_mha(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed requests; query i of S sees keys j <= i + T - S of its request's T (all, if not causal).

    Shapes:
        q: [s, h, d], k: [t, h, d], v: [t, h, v], one of bf16, fp16, fp32; token and head strides are free
        cu_q, cu_k: [b+1] int32 prefix sums of query and key counts
        scale: multiplies q.k
    Returns out [s, h, v] in the dtype of q and lse [s, h] fp32, natural log; (0, -inf) for a query without keys and
    for rows at or beyond cu_q[b]. A value row that holds NaN reaches every query of a tile that sees it.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_attention(q, k, v, cu_q, cu_k)
    (s, h, d), value_dim, b = q.shape, v.size(2), cu_q.size(0) - 1
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s == 0:
        return out, lse
    (d_main, d_rest), v_block = split(d), padded(value_dim)
    config = launch.dense(d_main + d_rest, v_block, q.element_size(), launch.room(q.device))
    _dense_mha_kernel[(query_tiles(s, b, config.rows), h)](
        q, k, v, out, lse, cu_q, cu_k, scale * LOG2_E.value, s, b,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), h,
        D=d, D_MAIN=d_main, D_REST=d_rest, V=value_dim, V_BLOCK=v_block,
        CAUSAL=causal, BLOCK_M=config.rows, BLOCK_N=config.columns,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse


def query_tiles(s: int, b: int, rows: int) -> int:
    """Programs that cover any split of ``s`` queries over ``b`` requests, see ``tiles.locate_tile``."""
    return s // rows + b + 1


def check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor) -> None:
    """Raise ValueError unless these can be the inputs of dense_mha."""
    check_tensor("q", q, "[s, h, d]", (None, None, None), ATTENTION_DTYPES, q.device)
    _, h, d = q.shape
    check_tensor("k", k, "[t, h, d]", (None, h, d), (q.dtype,), q.device)
    check_tensor("v", v, "[t, h, v]", (k.size(0), h, None), (q.dtype,), q.device)
    check_tensor("cu_q", cu_q, "[b+1]", (None,), (torch.int32,), q.device)
    check_tensor("cu_k", cu_k, "[b+1]", (cu_q.size(0),), (torch.int32,), q.device)
    if cu_q.size(0) < 2 or min(h, d, v.size(2)) < 1:
        raise ValueError(
            f"dense_mha: expected at least one request, head and column, got b={cu_q.size(0) - 1}, h={h}, d={d}, "
            f"v={v.size(2)}"
        )
