"""What the reference says about one chunk: the exact answer and the sums its error budget is made of.

With p the softmax weights of a query over its keys, and v their values::

    out = sum p v        B1 = sum p |v|        B2 = sqrt(sum p^2 v^2)

B1 bounds an error that every key shares, B2 one that is independent from key to key: rounding P to bf16 is the second
kind, unless many keys have the same score and so the same rounding error. ``coherence`` measures that: the chance that
two keys, drawn by their weights, share a rounding cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...reference.chunks import Chunk
from ...reference.softmax import probabilities, weighted_sum
from ...reference.sparse_mqa import sink_share

#: Distances, in keys, at which pairs are compared to estimate the chance of a shared rounding cell.
PAIR_DISTANCES = (1, 7, 31)


@dataclass(frozen=True, slots=True)
class Moments:
    """Shapes: x and m are the chunk's two row axes, v the value dims. All fp64."""

    out: Tensor
    """[x,m,v] the exact answer."""
    lse: Tensor
    """[x,m] natural log."""
    b1: Tensor
    """[x,m,v]"""
    b2: Tensor
    """[x,m,v]"""
    weight2: Tensor
    """[x,m] sum p^2: one over the effective number of keys."""
    spread: Tensor
    """[x,m] (sum p^4 |v|^4) / (sum p^2 |v|^2)^2: one over the effective number of independent rounding errors."""
    coherence: Tensor
    """[x,m] in [0,1]"""
    score_size: Tensor
    """[x,m] scale |q| sum p |k|: size of the products behind a typical score."""
    score_size_max: Tensor
    """[x,m] scale |q| max |k|"""
    score_max: Tensor
    """[x,m] largest |score| that carries weight."""
    seen: Tensor
    """[x,m] number of keys."""
    top: Tensor
    """[x,m] weight of the heaviest key."""
    top_value: Tensor
    """[x,m,v] its value."""
    mean_value: Tensor
    """[x,m,v] unweighted mean of the values that are seen."""
    value_max: Tensor
    """[x,1,v] largest |value|."""

    @property
    def empty(self) -> Tensor:
        return self.seen == 0


def moments(chunk: Chunk, scale: float, cell: float, sink: Tensor | None) -> Moments:
    """Exact answer and budget sums of one chunk.

    ``cell`` is the unit roundoff of the declared probabilities. ``sink`` [h] attenuates the answer by
    exp(lse) / (exp(lse) + exp(sink)) and leaves the LSE.
    """
    chunk = _at_least_one_key(chunk)
    p, lse = probabilities(chunk, scale)
    out = weighted_sum(chunk, p, chunk.values)
    # What no query of the chunk may see is of no size, whatever it holds.
    reached = chunk.allowed.any(-2)[..., None]
    values = torch.where(reached, torch.nan_to_num(chunk.values, nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    keys = torch.where(reached, torch.nan_to_num(chunk.keys, nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    square = values * values
    p2 = p * p
    size2 = square.sum(-1)  # [x,t]
    key_norm = keys.norm(dim=-1)  # [x,t]
    query_norm = scale * chunk.queries.norm(dim=-1)  # [x,m]
    allowed = chunk.allowed.expand(p.shape)
    seen = allowed.sum(-1)
    top, heaviest = p.max(-1)
    top_value = values[torch.arange(p.shape[0], device=p.device)[:, None], heaviest]
    scores = torch.where(p > 0, p.clamp_min(1e-300).log() + _finite(lse)[..., None], 0.0)
    key_norms = key_norm[:, None].expand(p.shape)
    trace = torch.einsum("xmt,xt->xm", p2, size2)
    wide = (torch.ones_like(lse) if sink is None else sink_share(lse, sink))[..., None]
    return Moments(
        out=out * wide,
        lse=lse,
        b1=(p @ values.abs()) * wide,
        b2=(p2 @ square).clamp_min(0.0).sqrt() * wide,
        weight2=p2.sum(-1),
        spread=torch.einsum("xmt,xt->xm", p2 * p2, size2 * size2) / (trace * trace).clamp_min(1e-300),
        coherence=_coherence(p, scores, cell),
        score_size=query_norm * torch.einsum("xmt,xt->xm", p, key_norm),
        score_size_max=query_norm * torch.where(allowed, key_norms, 0.0).amax(-1),
        score_max=torch.where(p > cell * cell, scores.abs(), 0.0).amax(-1),
        seen=seen,
        top=top,
        top_value=top_value * wide,
        mean_value=(allowed.to(p.dtype) @ values) / seen.clamp_min(1)[..., None],
        value_max=values.abs().amax(-2, keepdim=True),
    )


def _at_least_one_key(chunk: Chunk) -> Chunk:
    """A chunk without keys gets one that nobody may see, so that maxima exist."""
    if chunk.keys.shape[1]:
        return chunk
    x, m = chunk.queries.shape[:2]
    return replace(
        chunk,
        keys=chunk.keys.new_zeros(x, 1, chunk.keys.shape[-1]),
        values=chunk.values.new_zeros(x, 1, chunk.values.shape[-1]),
        allowed=chunk.allowed.new_zeros(x, m, 1),
    )


def _finite(lse: Tensor) -> Tensor:
    return torch.where(torch.isfinite(lse), lse, 0.0)


def _coherence(p: Tensor, scores: Tensor, cell: float) -> Tensor:
    met = torch.zeros(p.shape[:-1], dtype=p.dtype, device=p.device)
    shared = torch.zeros_like(met)
    for distance in PAIR_DISTANCES:
        if distance >= p.shape[-1]:
            break
        pair = p[..., distance:] * p[..., :-distance]
        near = (scores[..., distance:] - scores[..., :-distance]).abs() < cell
        met += pair.sum(-1)
        shared += torch.where(near, pair, 0.0).sum(-1)
    return shared / met.clamp_min(1e-300)
