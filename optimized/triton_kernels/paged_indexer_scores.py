"""Lightning-indexer scores of decoding requests: keys found by block table on the planar pages of a quantised cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..pages import check_paged, planar
from . import launch
from .padding import padded
from .tiles import load_rows


@triton.jit
def _paged_indexer_scores_kernel(
    q_ptr, codes_ptr, scales_ptr, weights_ptr, q_scale_ptr, context_lens_ptr, block_table_ptr, scores_ptr,
    pages, table_width, max_model_len,
    q_stride_b, q_stride_m, q_stride_i, codes_stride_p, codes_stride_t, scales_stride_p, weights_stride_s,
    q_scale_stride_s, block_table_stride_b,
    M: tl.constexpr, HEADS: tl.constexpr, I_BLOCK: tl.constexpr, E: tl.constexpr, E_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_T: tl.constexpr, HAS_Q_SCALE: tl.constexpr,
):  # fmt: skip
    # Key tiles of one request run side by side.
    tiles = tl.cdiv(max_model_len, BLOCK_T)
    request = (tl.program_id(0) // tiles).to(tl.int64)
    keys = tl.program_id(0) % tiles * BLOCK_T + tl.arange(0, BLOCK_T)
    length = tl.load(context_lens_ptr + request)
    live = keys < length
    heads = tl.arange(0, I_BLOCK)
    real = heads < HEADS

    place = keys // PAGE
    page = tl.load(
        block_table_ptr + request * block_table_stride_b + place, mask=live & (place < table_width), other=-1
    )
    # A page that the cache does not have is never read: its keys score NaN.
    there = live & (page >= 0) & (page < pages)
    slot = keys % PAGE
    page = page.to(tl.int64)
    columns = tl.arange(0, E_BLOCK)
    at = codes_ptr + (page * codes_stride_p + slot * codes_stride_t)[:, None] + columns[None, :]
    codes = tl.load(at, mask=there[:, None] & (columns < E)[None, :], other=0.0)
    vectors = tl.trans(codes.to(tl.float16))
    scale = tl.load(scales_ptr + page * scales_stride_p + slot, mask=there, other=float("nan"))

    for query in tl.static_range(M):
        row = request * M + query
        q = load_rows(q_ptr + request * q_stride_b + query * q_stride_m, heads, q_stride_i, real, 0, E, E_BLOCK, True)
        product = tl.dot(q.to(tl.float16), vectors, input_precision="ieee")
        weight = tl.load(weights_ptr + row * weights_stride_s + heads, mask=real, other=0.0)
        if HAS_Q_SCALE:
            weight *= tl.load(q_scale_ptr + row * q_scale_stride_s + heads, mask=real, other=0.0)
        # Not maximum(product, 0), which would turn NaN into 0.
        total = tl.sum(weight[:, None] * tl.where(product < 0.0, 0.0, product), 0)
        end = length - M + query + 1
        scores = tl.where(keys < end, total * scale, float("-inf"))
        tl.store(scores_ptr + row * max_model_len + keys, scores, mask=keys < max_model_len)


def paged_indexer_scores(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    max_model_len: int,
    q_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor]:
    """``indexer_scores`` of the last m tokens of every request over its own context, key t in column t, else -inf.

    Shapes:
        q: [b, m, i, e] float8_e4m3fn; all strides but the inner are free
        k_cache: [p, page*(e+4)] uint8, planar: the codes of a page, then its fp32 scales; pages may lie apart
        weights, q_scale: [b*m, i] fp32, context_lens: [b] int32, block_table: [b, w] int32
    Returns (scores [b*m, max_model_len] fp32,), every element written. Query j sees context_lens[b] - m + j + 1 keys.
    Entries of the table behind a context do not matter; a page that the cache does not have gives NaN. Values are
    widened to fp16, which is exact, since Hopper's fp8 products are summed with fewer than 24 bits.
    Raises ValueError for shapes, dtypes, devices, strides or alignment that do not fit, and on the CPU for contexts,
    pages and scales that cannot be. Never waits for the device.
    """
    check_paged(q, k_cache, weights, context_lens, block_table, max_model_len, q_scale)
    b, m, i, e = q.shape
    codes, scales = planar(k_cache, e)
    scores = torch.empty((b * m, max_model_len), dtype=torch.float32, device=q.device)
    if scores.numel() == 0:
        return (scores,)
    config = launch.paged_indexer(padded(i), padded(e), launch.room(q.device))
    _paged_indexer_scores_kernel[(b * triton.cdiv(max_model_len, config.columns),)](
        q, codes, scales, weights, q_scale, context_lens, block_table, scores,
        k_cache.size(0), block_table.size(1), max_model_len,
        q.stride(0), q.stride(1), q.stride(2), codes.stride(0), codes.stride(1), scales.stride(0), weights.stride(0),
        0 if q_scale is None else q_scale.stride(0), block_table.stride(0),
        M=m, HEADS=i, I_BLOCK=padded(i), E=e, E_BLOCK=padded(e), PAGE=scales.size(1), BLOCK_T=config.columns,
        HAS_Q_SCALE=q_scale is not None, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return (scores,)
