"""MHA under a bit-packed mask AND causality on Hopper; key tiles that no row of a query tile sees are never brought."""

from __future__ import annotations

import torch

from ..triton_kernels.checks import check_tensor
from ..triton_kernels.dense_mha import check_attention, query_tiles
from ..triton_kernels.visible_tiles import visible_tiles
from .attention import KEYS, ROWS, attention


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
        q: [s, h, d], k: [t, h, d], v: [t, h, v], bf16 or fp16, d/v 192/128 or 256/256; token and head strides are free
            multiples of 16 bytes
        mask: [b, s_padded, words] int32, words of one row adjacent; bits, rows and words beyond a request's counts
            are never used, and keys beyond the last word are not seen
        cu_q, cu_k: [b+1] int32 prefix sums of query and key counts
        scale: multiplies q.k
    Returns out [s, h, v] in the dtype of q and lse [s, h] fp32, natural log; (0, -inf) for a query without keys and
    for rows at or beyond cu_q[b]. A value row that holds NaN reaches every query of a tile that loads it.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_attention(q, k, v, cu_q, cu_k)
    s, b = q.size(0), cu_q.size(0) - 1
    check_tensor("mask", mask, "[b, s_padded, words]", (b, None, None), (torch.int32,), q.device)
    keys = KEYS.get((q.size(2), v.size(2)))
    if keys is None or s == 0 or k.size(0) == 0:
        return attention(q, k, v, cu_q, cu_k, scale=scale, causal=causal)
    tiles = query_tiles(s, b, ROWS)
    found = visible_tiles(mask, cu_q, cu_k, s=s, tiles=tiles, causal=causal, rows=ROWS, columns=keys)
    return attention(q, k, v, cu_q, cu_k, scale=scale, causal=causal, mask=mask, found=found)
