"""Sparse MQA on heads padded to a multiple of 64, as the kernels of FlashMLA demand and engines do.

The heads that are added are never written: whatever their memory holds, no other head may see it.
"""

from __future__ import annotations

import torch

from .sparse_mqa import sparse_mqa as unpadded

HEAD_MULTIPLE = 64


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
    """As ``sparse_mqa``, computed with a multiple of 64 heads; out and lse are views of the heads that were asked for.

    Source: vLLM 0.33.0 ``flashmla_sparse.py``; FlashMLA at 9241ae3 takes 64 or 128 heads.
    """
    s, h, width = q.shape
    heads = -(-h // HEAD_MULTIPLE) * HEAD_MULTIPLE
    wide = torch.empty((s, heads, width), dtype=q.dtype, device=q.device)
    wide[:, :h] = q
    sinks = sink
    if sink is not None:
        sinks = torch.empty(heads, dtype=sink.dtype, device=sink.device)
        sinks[:h] = sink
    out, lse = unpadded(
        wide, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sinks, cache_format=cache_format,
        q_scale=q_scale, k_scale=k_scale,
    )  # fmt: skip
    return out[:, :h], lse[:, :h]
