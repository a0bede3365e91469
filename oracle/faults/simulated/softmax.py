"""Online softmax over key tiles: the arithmetic that every simulated attention kernel shares.

Scores and accumulation in fp32; the unnormalised probabilities are rounded before they meet V. The running state after
each tile is (peak, total, acc): the largest score so far, the sum of exp(s - peak), and the sum of exp(s - peak) v.
Source of the recurrence: Milakov and Gimelshein, arXiv 1805.02867.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .merge import MERGE_SITES, merge_pair
from .sites import Sites


class State(NamedTuple):
    """Running state, [B, R] and [B, R, v], fp32."""

    peak: Tensor
    total: Tensor
    acc: Tensor


def begin(q: Tensor, value_dim: int, sites: Sites) -> State:
    """The state before any tile, for queries [B, R, d]."""
    peak = torch.full(q.shape[:-1], sites.start, dtype=torch.float32, device=q.device)
    zeros = torch.zeros(*q.shape[:-1], value_dim, dtype=torch.float32, device=q.device)
    return State(peak, torch.zeros_like(peak), zeros)


def step(
    state: State, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, dtype: torch.dtype, sites: Sites
) -> State:
    """One tile: q [B, R, d], k [B, n, d], v [B, n, v] in fp32; ``seen`` broadcasts to [B, R, n]."""
    s = sites.masked(sites.score(sites.dot(q, k), scale), seen)
    peak = torch.maximum(state.peak, sites.peak(s))
    base = sites.base(peak)
    p = sites.exp(s - base[..., None])
    decay = sites.exp(state.peak - base)
    p_rounded = sites.probabilities(p, dtype)
    total = sites.total(state.total * sites.decay_sum(decay) + sites.summand(p, p_rounded).sum(-1))
    acc = sites.acc(state.acc * sites.decay_acc(decay)[..., None] + sites.product(p_rounded, v))
    return State(peak, total, acc)


def finish(state: State, sites: Sites) -> tuple[Tensor, Tensor]:
    """Normalised output [B, R, v] and natural-log LSE [B, R], both fp32."""
    return sites.normalise(state.acc, state.total[..., None]), sites.log(state.peak, state.total)


def merge_splits(parts: list[tuple[Tensor, Tensor, bool]], sites: Sites) -> tuple[Tensor, Tensor]:
    """Partial results (out, lse, whether the split had a tile), left to right."""
    merge = sites.merge or (lambda a, b: merge_pair(a[0], a[1], b[0], b[1], MERGE_SITES))
    out, lse, ran = parts[0]
    merged = sites.scratch(sites.partial(out), lse, ran) if len(parts) > 1 else (out, lse)
    for out, lse, ran in parts[1:]:
        merged = merge(merged, sites.scratch(sites.partial(out), lse, ran))
    return merged
