"""The lightning indexer's stages: I[s,t] = sum_i w[s,i] relu(q[s,i] . k[t]) over t <= position of s, then top-k.

    q = W_q q_c, from the normalised query latent         k = LayerNorm(W_k x), with bias; one key a token
    w = W_w x e^-1/2 i^-1/2                                RoPE on the first r of e dims, unlike the attention's

Source: DeepSeek-V3.2-Exp at 3b99a53 ``inference/model.py`` (its RoPE style was mended on 2025-11-17); vLLM 0.33.0.

Shapes:
    hidden: [t, x]    q_c: [s, y]    index_q: [s, i, e]    index_k: [t, e]    weights: [s, i]    scores: [s, t]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..topk_select import topk_select
from .latent import rotate
from .model import INDEX_NORM_EPS, Model, Weights


def hadamard(e: int, dtype: torch.dtype) -> Tensor:
    """The orthonormal Hadamard matrix [e, e]. Raises ValueError unless e is a power of two."""
    if e < 1 or e & (e - 1):
        raise ValueError(f"hadamard: expected a power of two, got {e}")
    matrix = torch.ones(1, 1, dtype=dtype)
    while len(matrix) < e:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(e)


def _placed(m: Model, x: Tensor, positions: Tensor) -> Tensor:
    turned = rotate(m, x[..., : m.rope], positions, interleaved=m.index_interleaved) if m.rope else x[..., :0]
    x = torch.cat((turned, x[..., m.rope :]), -1)
    return x @ hadamard(m.index_dim, x.dtype) if m.hadamard else x


def index_query(m: Model, w: Weights, *, q_c: Tensor, positions: Tensor) -> Tensor:
    """[s, i, e], rotated."""
    return _placed(m, (q_c @ w.need("index_q").T).view(len(q_c), m.index_heads, m.index_dim), positions)


def index_key(m: Model, w: Weights, *, hidden: Tensor, positions: Tensor) -> Tensor:
    """[t, e], normalised and rotated."""
    x = hidden @ w.need("index_k").T
    norm, bias = w.need("index_norm"), w.need("index_norm_bias")
    return _placed(m, torch.nn.functional.layer_norm(x, (m.index_dim,), norm, bias, INDEX_NORM_EPS), positions)


def index_weights(m: Model, w: Weights, *, hidden: Tensor) -> Tensor:
    """[s, i] with both factors."""
    return hidden @ w.need("index_weights").T / math.sqrt(m.index_dim * m.index_heads)


def index_scores(m: Model, w: Weights, *, index_q: Tensor, index_k: Tensor, weights: Tensor) -> Tensor:
    """[s, t], -inf where the key lies behind the query; the queries are the last s tokens."""
    dots = torch.einsum("sie,te->sit", index_q, index_k).relu()
    scores = torch.einsum("si,sit->st", weights, dots)
    s, t = scores.shape
    seen = torch.ones(s, t, dtype=torch.bool).tril(t - s)
    return scores.masked_fill(~seen, -torch.inf)


def select(m: Model, w: Weights, *, scores: Tensor) -> Tensor:
    """int32 [s, k] positions, -1 where a query sees fewer than k keys."""
    s, t = scores.shape
    ends = torch.arange(t - s + 1, t + 1, dtype=torch.int32)
    return topk_select(scores, torch.zeros_like(ends), ends, k=m.topk)[0]
