"""Dense MHA over a ragged batch on Hopper; see ``attention.py``."""

from __future__ import annotations

import torch

from .attention import attention


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
        q: [s, h, d], k: [t, h, d], v: [t, h, v], bf16 or fp16, d/v 192/128 or 256/256; token and head strides are free
            multiples of 16 bytes
        cu_q, cu_k: [b+1] int32 prefix sums of query and key counts
        scale: multiplies q.k
    Returns out [s, h, v] in the dtype of q and lse [s, h] fp32, natural log; (0, -inf) for a query without keys and
    for rows at or beyond cu_q[b]. A value row that holds NaN reaches every query of a tile that loads it.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    return attention(q, k, v, cu_q, cu_k, scale=scale, causal=causal)
