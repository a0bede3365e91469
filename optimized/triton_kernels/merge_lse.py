"""Merging two partial attentions over disjoint keys by their log-sum-exps."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import ATTENTION_DTYPES, check_tensor
from .padding import padded


@triton.jit
def _merge_lse_kernel(
    out_a_ptr, lse_a_ptr, out_b_ptr, lse_b_ptr, out_ptr, lse_ptr, rows, h,
    a_stride_s, a_stride_h, lse_a_stride_s, lse_a_stride_h, b_stride_s, b_stride_h, lse_b_stride_s, lse_b_stride_h,
    V: tl.constexpr, V_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    query, head = row // h, row % h
    lse_a = tl.load(lse_a_ptr + query * lse_a_stride_s + head * lse_a_stride_h, mask=live, other=float("-inf"))
    lse_b = tl.load(lse_b_ptr + query * lse_b_stride_s + head * lse_b_stride_h, mask=live, other=float("-inf"))
    top = tl.maximum(lse_a, lse_b)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight_a = tl.exp(lse_a - base)
    weight_b = tl.exp(lse_b - base)
    total = weight_a + weight_b
    total = tl.where(total == 0.0, 1.0, total)

    columns = tl.arange(0, V_BLOCK)
    inside = live[:, None] & (columns < V)[None, :]
    # An empty side is not read, so whatever its output holds cannot leak.
    a_ptrs = out_a_ptr + (query * a_stride_s + head * a_stride_h)[:, None] + columns[None, :]
    b_ptrs = out_b_ptr + (query * b_stride_s + head * b_stride_h)[:, None] + columns[None, :]
    a = tl.load(a_ptrs, mask=inside & (lse_a != float("-inf"))[:, None], other=0.0).to(tl.float32)
    b = tl.load(b_ptrs, mask=inside & (lse_b != float("-inf"))[:, None], other=0.0).to(tl.float32)
    out = (weight_a / total)[:, None] * a + (weight_b / total)[:, None] * b
    out_ptrs = out_ptr + row[:, None] * V + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside)
    lse = tl.where(top == float("inf"), top, top + tl.log(total))
    tl.store(lse_ptr + row, lse, mask=live)


def merge_lse(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from the attention over each.

    ``lse = log(exp(lse_a) + exp(lse_b))``, ``out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b``.

    Shapes:
        out_a, out_b: [s, h, v], both bf16, fp16 or fp32; token and head strides are free
        lse_a, lse_b: [s, h] fp32, natural log; -inf marks an empty side, whose output is not read
    Returns out [s, h, v] in the dtype of out_a and lse [s, h] fp32; (0, -inf) where both are empty.
    Raises ValueError for shapes, dtypes or devices that do not fit. Never waits for the device.
    """
    check_tensor("out_a", out_a, "[s, h, v]", (None, None, None), ATTENTION_DTYPES, out_a.device)
    s, h, value_dim = out_a.shape
    check_tensor("out_b", out_b, "[s, h, v]", (s, h, value_dim), (out_a.dtype,), out_a.device)
    # The strides of an LSE are all free: engines keep it head-major, [h, s].
    check_tensor("lse_a", lse_a.unsqueeze(-1), "[s, h]", (s, h, 1), (torch.float32,), out_a.device)
    check_tensor("lse_b", lse_b.unsqueeze(-1), "[s, h]", (s, h, 1), (torch.float32,), out_a.device)
    out = torch.empty((s, h, value_dim), dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=out_a.device)
    if s * h == 0 or value_dim == 0:
        return out, lse
    config = launch.merge(padded(value_dim), launch.room(out_a.device))
    _merge_lse_kernel[(triton.cdiv(s * h, config.rows),)](
        out_a, lse_a, out_b, lse_b, out, lse, s * h, h,
        out_a.stride(0), out_a.stride(1), lse_a.stride(0), lse_a.stride(1),
        out_b.stride(0), out_b.stride(1), lse_b.stride(0), lse_b.stride(1),
        V=value_dim, V_BLOCK=config.columns, BLOCK=config.rows,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out, lse
