"""The attention's stages: latents, heads, RoPE, attention over the selection, output projection.

    q_c = norm(W_qa x)                      q = heads of W_qb q_c, each cat(p unrotated, r rotated dims)
    (kv_a, k_pe) = W_kva x                  kv_c = norm(kv_a); one k_pe for all heads
    norm(x) = x / sqrt(mean(x^2) + eps) g
    out[s] = W_o cat_h sum_{t selected} softmax(scale q.k) v

Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1; vLLM 0.33.0 ``mla_attention.py`` and ``models/deepseek_v32``.

Shapes:
    hidden: [t, x]    q_c: [s, y]    q: [s, h, p+r]    kv_c: [t, c]    k_pe: [t, r]    indices: int [s, k]
    x is the width of the hidden states and y that of the query latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..mla import split_kv_b, up_project
from ..rope import rope_tables, rotate_halves, rotate_interleaved
from .model import Model, Weights


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def q_latent(m: Model, w: Weights, *, hidden: Tensor) -> Tensor:
    """q_c [s, y]."""
    return rms_norm(hidden @ w.q_a.T, w.q_a_norm, m.eps)


def query(m: Model, w: Weights, *, q_c: Tensor) -> Tensor:
    """q [s, h, p+r], not rotated."""
    return (q_c @ w.q_b.T).view(len(q_c), m.heads, m.nope + m.rope)


def kv_latent(m: Model, w: Weights, *, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """kv_c [t, c] and k_pe [t, r], not rotated."""
    both = hidden @ w.kv_a.T
    return rms_norm(both[:, : m.latent], w.kv_a_norm, m.eps), both[:, m.latent :]


def rotate(m: Model, x: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """x [s, …, r] turned by its positions."""
    cos, sin = rope_tables(positions, dim=x.shape[-1], theta=m.theta, yarn=m.yarn)
    return (rotate_interleaved if interleaved else rotate_halves)(x, cos, sin).to(x.dtype)


def rotate_query(m: Model, w: Weights, *, q: Tensor, positions: Tensor) -> Tensor:
    """q [s, h, p+r] with its last r dims rotated."""
    if not m.rope:
        return q
    return torch.cat((q[..., : m.nope], rotate(m, q[..., m.nope :], positions, interleaved=m.interleaved)), -1)


def rotate_key(m: Model, w: Weights, *, k_pe: Tensor, positions: Tensor) -> Tensor:
    """k_pe [t, r] rotated."""
    return rotate(m, k_pe, positions, interleaved=m.interleaved) if m.rope else k_pe


def attention(m: Model, w: Weights, *, q: Tensor, kv_c: Tensor, k_pe: Tensor, indices: Tensor) -> Tensor:
    """[s, h, v] over the selected positions; -1 selects nothing. q and k_pe are rotated."""
    w_uk, w_uv = split_kv_b(w.kv_b, heads=m.heads, qk_nope_head_dim=m.nope, v_head_dim=m.v)
    k, v = up_project(kv_c, k_pe, w_uk, w_uv)  # [t, h, p+r], [t, h, v]
    allowed = torch.zeros(len(q), len(kv_c) + 1, dtype=torch.bool)
    allowed.scatter_(1, torch.where(indices < 0, len(kv_c), indices).long(), True)
    scores = torch.einsum("shd,thd->hst", q, k) * m.scale
    p = scores.masked_fill(~allowed[:, :-1], -torch.inf).softmax(-1)
    p = p.masked_fill(~allowed[:, :-1], 0.0)  # a query that selects nothing has no softmax: its output is 0
    return torch.einsum("hst,thv->shv", p, v)


def output(m: Model, w: Weights, *, attended: Tensor) -> Tensor:
    """[s, x] of the attention's [s, h, v], heads in order."""
    return attended.flatten(1) @ w.o.T
