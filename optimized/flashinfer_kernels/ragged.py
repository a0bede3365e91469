"""Dense and masked attention over packed requests by ``BatchPrefillWithRaggedKVCacheWrapper``."""

from __future__ import annotations

import torch
from flashinfer import BatchPrefillWithRaggedKVCacheWrapper
from torch import Tensor

from ..implementation import Run
from .arrange import flattened

#: Bytes of float workspace that FlashInfer recommends.
WORKSPACE = 128 * 2**20


def _plan(
    backend: str, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, mask: Tensor | None, scale: float,
    causal: bool,
) -> Run:  # fmt: skip
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=q.device)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
    wrapper.plan(
        cu_q,
        cu_k,
        q.shape[1],
        k.shape[1],
        q.shape[2],
        head_dim_vo=v.shape[2],
        custom_mask=mask,
        causal=causal,
        sm_scale=scale,
        q_data_type=q.dtype,
    )
    return lambda: tuple(wrapper.run(q, k, v, return_lse=True))


def plan_dense_fa2(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> Run:
    """``dense_mha`` by the fa2 backend, planned."""
    return _plan("fa2", q, k, v, cu_q, cu_k, None, scale, causal)


def plan_dense_fa3(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> Run:
    """``dense_mha`` by the fa3 backend, planned."""
    return _plan("fa3", q, k, v, cu_q, cu_k, None, scale, causal)


def plan_masked_fa2(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> Run:
    """``masked_mha`` by the fa2 backend, planned; causality goes into the mask, since a custom mask replaces it."""
    return _plan("fa2", q, k, v, cu_q, cu_k, flattened(mask, cu_q, cu_k, causal), scale, False)


def dense_fa2(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """q [s,h,d], k [t,h,d], v [t,h,v] -> out [s,h,v], lse fp32 [s,h], base 2."""
    return plan_dense_fa2(q, k, v, cu_q, cu_k, scale=scale, causal=causal)()


def dense_fa3(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """q [s,h,d], k [t,h,d], v [t,h,v] -> out [s,h,v], lse fp32 [s,h], base 2."""
    return plan_dense_fa3(q, k, v, cu_q, cu_k, scale=scale, causal=causal)()


def masked_fa2(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """The same under mask words [b, s_padded, words] -> out [s,h,v], lse fp32 [s,h], base 2."""
    return plan_masked_fa2(q, k, v, mask, cu_q, cu_k, scale=scale, causal=causal)()
