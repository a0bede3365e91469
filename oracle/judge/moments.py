"""What the reference says about one chunk: the exact answer and the sums its error budget is made of.

With p the softmax weights of a query over its keys, and v their values::

    out = sum p v        B1 = sqrt(sum p v^2) >= sum p |v|        B2 = sqrt(sum p^2 v^2)

B1 bounds an error that every key shares, B2 one that is independent from key to key: rounding P to bf16 is the second
kind, unless many keys have the same score and so the same rounding error. ``coherence`` measures that: the chance that
two keys, drawn by their weights, share a rounding cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...reference.chunks import Chunk
from ...reference.softmax import probabilities, weighted_sum
from ...reference.sparse_mqa import sink_share

#: Distances, in slots, at which pairs are compared to estimate the chance of a shared rounding cell. One odd and one
#: even, so that keys which alternate between two scores are seen to share.
PAIR_DISTANCES = (1, 2)
#: Above so many slots a quarter of the pairs is enough.
MANY = 512


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
    score_spread: Tensor
    """[x,m] largest scale sqrt(sum_d q_d^2 k_d^2): what independent relative errors of a key's elements add up to."""
    score_max: Tensor
    """[x,m] largest |score| that carries weight."""
    seen: Tensor
    """[x,m] number of keys."""
    top: Tensor
    """[x,m] weight of the heaviest key."""
    top_value: Tensor
    """[x,m,v] its value."""
    gain: Tensor
    """[x,m,1] what a sink leaves of the answer; 1 without."""
    value_max: Tensor
    """[x,1,v] largest |value| where P may underflow, [x,1,1] a bound on it elsewhere."""

    @property
    def empty(self) -> Tensor:
        return self.seen == 0


def moments(
    chunk: Chunk, scale: float, cell: float, sink: Tensor | None, *, underflow: bool = False, dequantised: bool = False
) -> Moments:
    """Exact answer and budget sums of one chunk.

    ``cell`` is the unit roundoff of the declared probabilities. ``sink`` [h] attenuates the answer by
    exp(lse) / (exp(lse) + exp(sink)) and leaves the LSE. ``underflow``: P has a format that small weights leave.
    ``dequantised``: elements of keys and values are rounded, which asks for ``score_spread``.
    """
    chunk = _at_least_one_key(chunk)
    p, lse = probabilities(chunk, scale)
    out = weighted_sum(chunk, p, chunk.values)
    chunk = _finite(chunk, out)
    values, square = chunk.values, chunk.values.square()
    size2 = square.sum(-1, keepdim=True)  # [x,t,1]
    key_norm = chunk.keys.norm(dim=-1, keepdim=True)
    query_norm = scale * chunk.queries.norm(dim=-1)  # [x,m]
    seen = chunk.allowed.sum(-1)  # [x,1] or [x,m]: the same keys for a chunk's heads or not
    top, heaviest = p.max(-1)
    top_value = values[torch.arange(p.shape[0], device=p.device)[:, None], heaviest]
    p2 = p.square()
    mean_square, b2_square = (torch.cat((p, p2), -2) @ square).tensor_split(2, -2)
    trace = b2_square.sum(-1)
    wide = (torch.ones_like(lse) if sink is None else sink_share(lse, sink))[..., None]
    return Moments(
        out=out * wide,
        lse=lse,
        b1=mean_square.sqrt() * wide,
        b2=b2_square.sqrt() * wide,
        weight2=p2.sum(-1),
        spread=(p2.square() @ size2.square())[..., 0] / trace.square().clamp_min(1e-300),
        coherence=_coherence(p, cell),
        score_size=query_norm * (p @ key_norm)[..., 0],
        score_size_max=query_norm * torch.where(chunk.allowed, key_norm.mT, 0.0).amax(-1),
        score_spread=_score_spread(chunk, scale) if dequantised else torch.zeros_like(lse),
        score_max=_score_max(lse, top, cell),
        seen=seen.expand(lse.shape),
        top=top,
        top_value=top_value * wide,
        gain=wide,
        value_max=values.abs().amax(-2, keepdim=True) if underflow else size2.amax(-2, keepdim=True).sqrt(),
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


def _finite(chunk: Chunk, out: Tensor) -> Chunk:
    """The chunk with what must have no size at 0: keys nobody sees, and anything that is not finite.

    Slots that a tokens-first chunk does not use are 0 already, so there a finite answer shows that all is.
    """
    if not chunk.heads_first and bool(torch.isfinite(out).all()):
        return chunk
    reached = chunk.allowed.any(-2)[..., None]
    keys, values = (
        torch.where(reached, torch.nan_to_num(side, 0.0, 0.0, 0.0), 0.0) for side in (chunk.keys, chunk.values)
    )
    return replace(chunk, keys=keys, values=values)


def _score_spread(chunk: Chunk, scale: float) -> Tensor:
    squares = torch.matmul(chunk.queries.square(), chunk.keys.square().mT)
    return scale * torch.where(chunk.allowed, squares, 0.0).amax(-1).sqrt()


def _score_max(lse: Tensor, top: Tensor, cell: float) -> Tensor:
    """Largest |score| among keys of weight over cell^2: between the heaviest key's and that weight's."""
    finite = torch.where(torch.isfinite(lse), lse, 0.0)
    highest = finite + top.clamp_min(1e-300).log()
    return torch.where(top > 0, torch.maximum(highest.abs(), (finite + 2.0 * math.log(cell)).abs()), 0.0)


def _coherence(p: Tensor, cell: float) -> Tensor:
    """Share of neighbouring pairs, by weight, whose scores agree to within one rounding cell of P."""
    # Single precision: logarithms are compared with a cell of 2**-11 at the finest, and this is an estimate; so is
    # taking every fourth pair of many.
    weights = p.to(torch.float32) if cell > 2.0**-20 else p
    stride = 4 if p.shape[-1] > MANY else 1
    logs = weights.log()
    met = torch.zeros(p.shape[:-1], dtype=weights.dtype, device=p.device)
    shared = torch.zeros_like(met)
    for distance in PAIR_DISTANCES:
        if distance >= p.shape[-1]:
            break
        pair = weights[..., distance::stride] * weights[..., :-distance:stride]
        # -inf - -inf is NaN, which is not near; such a pair has weight 0.
        near = (logs[..., distance::stride] - logs[..., :-distance:stride]).abs_() < cell
        met += pair.sum(-1)
        shared += pair.mul_(near).sum(-1)
    # Where no pair of keys met, nothing speaks against one rounding error for all of them.
    estimate = torch.where(met > 0, shared / met.clamp_min(torch.finfo(met.dtype).tiny), 1.0)
    return estimate.to(p.dtype)
