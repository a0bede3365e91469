"""Context parallelism: every rank attends to the keys that it keeps, and the partials are merged by their LSE.

    rank of position t = t // interleave mod ranks
    lse[n,s,h] = ln sum_{t selected, of rank n} exp(scale q.k)         out[n,s,h] = that rank's softmax times v
    merged = sum_n exp(lse_n - L) out_n                                 L = ln sum_n exp(lse_n)

A rank without a selected key gives 0 and -inf, and weighs nothing. Natural logarithm.

Source: vLLM 0.33.0 ``vllm/v1/attention/ops/merge_attn_states.py``, ``cp_utils``; vllm#54541 for what goes wrong.

Shapes:
    q: [s, h, p+r]    kv_c: [t, c]    k_pe: [t, r]    indices: int [s, k]    outs: [n, s, h, v]    lses: [n, s, h]
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..mla import split_kv_b, up_project
from .model import Model, Weights


def kept(indices: Tensor, rank: int, ranks: int, interleave: int) -> Tensor:
    """The selection [s, k] of one rank: -1 where another keeps the key."""
    mine = indices.div(interleave, rounding_mode="floor").remainder(ranks) == rank
    return torch.where(mine & (indices >= 0), indices, -1)


def rank_attention(
    m: Model, w: Weights, *, q: Tensor, kv_c: Tensor, k_pe: Tensor, indices: Tensor, ranks: int, interleave: int
) -> tuple[Tensor, Tensor]:
    """outs and lses of all ranks; q and k_pe are rotated."""
    w_uk, w_uv = split_kv_b(w.kv_b, heads=m.heads, qk_nope_head_dim=m.nope, v_head_dim=m.v)
    k, v = up_project(kv_c, k_pe, w_uk, w_uv)
    scores = torch.einsum("shd,thd->sht", q, k) * m.scale
    outs, lses = [], []
    for rank in range(ranks):
        own = kept(indices, rank, ranks, interleave)
        seen = torch.zeros(len(q), len(kv_c) + 1, dtype=torch.bool)
        seen = seen.scatter_(1, torch.where(own < 0, len(kv_c), own).long(), True)[:, None, :-1]
        lse = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
        p = (scores - lse[..., None]).exp().masked_fill(~seen, 0.0)
        outs.append(torch.einsum("sht,thv->shv", p, v))
        lses.append(lse)
    return torch.stack(outs), torch.stack(lses)


def merge_ranks(m: Model, w: Weights, *, outs: Tensor, lses: Tensor) -> Tensor:
    """[s, h, v]; 0 for a query that no rank has a key of."""
    total = lses.logsumexp(0)
    weights = (lses - total).exp().masked_fill(lses == -torch.inf, 0.0)
    return (weights[..., None] * outs).sum(0)
