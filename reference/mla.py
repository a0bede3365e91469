"""Multi-head latent attention: from the cached latent to keys and values, and the absorbed form that avoids them.

    MHA form:  k[t,h] = cat(w_uk[h] kv_c[t], k_pe[t])        v[t,h] = w_uv[h] kv_c[t]
    MQA form:  q'[s,h] = cat(w_uk[h]^T q_nope[s,h], q_pe[s,h])  against cat(kv_c, k_pe), values kv_c
               out[s,h] = w_uv[h] out'[s,h]
    both:      scale = (p + r)^-1/2, times mscale(factor, mscale_all_dim)^2 with YaRN

p is qk_nope_head_dim: a query is its p unrotated dims, then its r rotated dims. A cache row is cat(kv_c, k_pe).

Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1 and appendix C; vLLM 0.33.0
``vllm/model_executor/layers/attention/mla_attention.py``; DeepSeek-V3.2 at 3b99a53, ``inference/model.py``.

Shapes:
    kv_c: [t, c]    k_pe: [t, r]    w_uk: [h, p, c]    w_uv: [h, v, c]    q: [s, h, p+r]
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype
from .rope import Yarn, yarn_mscale


def split_kv_b(kv_b: Tensor, *, heads: int, qk_nope_head_dim: int, v_head_dim: int) -> tuple[Tensor, Tensor]:
    """w_uk [h, p, c] and w_uv [h, v, c] of a ``kv_b_proj`` weight [h * (p + v), c], concatenated head by head."""
    per_head = qk_nope_head_dim + v_head_dim
    if kv_b.dim() != 2 or kv_b.shape[0] != heads * per_head:
        raise ValueError(f"kv_b: expected [{heads * per_head}, c], got {list(kv_b.shape)}")
    by_head = kv_b.reshape(heads, per_head, kv_b.shape[1])
    return by_head[:, :qk_nope_head_dim], by_head[:, qk_nope_head_dim:]


def up_project(kv_c: Tensor, k_pe: Tensor, w_uk: Tensor, w_uv: Tensor) -> tuple[Tensor, Tensor]:
    """k [t, h, p+r] and v [t, h, v] of the MHA form; every head has the same rotated key dims."""
    bind_sizes(("kv_c", kv_c, "t c"), ("k_pe", k_pe, "t r"), ("w_uk", w_uk, "h p c"), ("w_uv", w_uv, "h v c"))
    dtype = compute_dtype(kv_c, k_pe, w_uk, w_uv)
    k_nope = torch.einsum("tc,hpc->thp", kv_c.to(dtype), w_uk.to(dtype))
    v = torch.einsum("tc,hvc->thv", kv_c.to(dtype), w_uv.to(dtype))
    shared = k_pe.to(dtype)[:, None, :].expand(-1, k_nope.shape[1], -1)  # [t, h, r]
    return torch.cat((k_nope, shared), -1), v


def absorb_query(q: Tensor, w_uk: Tensor) -> Tensor:
    """The query [s, h, c+r] of the MQA form, whose dot product with a cache row is that of the MHA form."""
    heads, nope, _ = w_uk.shape
    if q.dim() != 3 or q.shape[1] != heads or q.shape[2] < nope:
        raise ValueError(f"q: expected [s, {heads}, >= {nope}], got {list(q.shape)}")
    dtype = compute_dtype(q, w_uk)
    q_nope, q_pe = q[..., :nope].to(dtype), q[..., nope:].to(dtype)
    return torch.cat((torch.einsum("shp,hpc->shc", q_nope, w_uk.to(dtype)), q_pe), -1)


def project_output(out: Tensor, w_uv: Tensor) -> Tensor:
    """The attention output [s, h, v] from its latent form [s, h, c]."""
    bind_sizes(("w_uv", w_uv, "h v c"), ("out", out, "s h c"))
    dtype = compute_dtype(out, w_uv)
    return torch.einsum("shc,hvc->shv", out.to(dtype), w_uv.to(dtype))


def softmax_scale(qk_head_dim: int, yarn: Yarn | None = None) -> float:
    """What multiplies q.k in both forms; ``qk_head_dim`` is p + r, also for absorbed queries."""
    scale = 1.0 / sqrt(qk_head_dim)
    return scale if yarn is None else scale * yarn_mscale(yarn.factor, yarn.mscale_all_dim) ** 2
