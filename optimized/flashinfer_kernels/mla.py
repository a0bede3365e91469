"""Sparse MQA by ``BatchMLAPagedAttentionWrapper`` with pages of one row: the page table of a query is its selection.

As vLLM 0.33's FLASHINFER_MLA_SPARSE_SM90 calls it: every query token is a request of one query, without causality.
"""

from __future__ import annotations

import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper
from torch import Tensor

from ..implementation import Run
from ..latent_rows import require_model
from .arrange import page_table
from .ragged import WORKSPACE


def _plan(
    backend: str, q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int,
    lengths: Tensor | None = None, sink: Tensor | None = None,
) -> Run:  # fmt: skip
    if sink is not None:
        raise ValueError("sink: the MLA wrapper takes none, got a tensor")
    slots, counts = page_table(indices, kv.shape[0], lengths)
    starts = torch.zeros(len(counts) + 1, dtype=torch.int32, device=q.device)
    starts[1:] = counts.cumsum(0)
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=q.device)
    wrapper = BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(
        torch.arange(len(counts) + 1, dtype=torch.int32, device=q.device),
        starts,
        slots,
        counts,
        q.shape[1],
        value_dim,
        q.shape[2] - value_dim,
        1,
        False,
        scale,
        q.dtype,
        kv.dtype,
    )
    pages = kv[:, None]
    queries = q[..., :value_dim], q[..., value_dim:]
    cache = pages[..., :value_dim], pages[..., value_dim:]
    return lambda: tuple(wrapper.run(*queries, *cache, return_lse=True))


def plan_fa2(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> Run:  # fmt: skip
    """``sparse_mqa`` by the fa2 backend, planned."""
    require_model(cache_format, q_scale, k_scale)
    return _plan("fa2", q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink)


def plan_fa3(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> Run:  # fmt: skip
    """``sparse_mqa`` by the fa3 backend, planned."""
    require_model(cache_format, q_scale, k_scale)
    return _plan("fa3", q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink)


def sparse_fa2(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """q [s,h,c+r], kv [n,c+r], indices [s,k] -> out [s,h,c], lse fp32 [s,h], base 2. Raises ValueError for a sink."""
    require_model(cache_format, q_scale, k_scale)
    return plan_fa2(q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink)()


def sparse_fa3(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """q [s,h,c+r], kv [n,c+r], indices [s,k] -> out [s,h,c], lse fp32 [s,h], base 2. Raises ValueError for a sink."""
    require_model(cache_format, q_scale, k_scale)
    return plan_fa3(q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink)()
