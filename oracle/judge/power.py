"""The input-power check: would a plainly wrong answer pass on this input?

A case on which zeros, the mean of V, a neighbour's answer or a dropped key stay inside the budget proves nothing when a
kernel passes it. Such a case is WEAK. A wrong answer that happens to be the right one here is no test and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...reference.chunks import Chunk
from .moments import Moments

#: Below this share of the answer's size a wrong answer counts as the right one.
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong answer in the chunk's own order: outputs [x,m,v], LSE [x,m], or both. It dies if either is seen."""

    name: str
    out: Tensor | None
    lse: Tensor | None = None


def mutants(m: Moments, chunk: Chunk, *, lse: bool) -> Iterator[Mutant]:
    """Wrong answers that differ from the right one on this chunk."""
    head_axis, query_axis = (0, 1) if chunk.heads_first else (1, 0)
    candidates = {
        "zeros": torch.zeros_like(m.out),
        "mean of V": m.mean_value,
        "heaviest key dropped": _without_heaviest(m),
        "next head's answer": m.out.roll(1, head_axis),
        "previous query's answer": m.out.roll(1, query_axis),
    }
    size = float(m.out.abs().max()) if m.out.numel() else 0.0
    for name, out in candidates.items():
        if float((out - m.out).abs().max() if m.out.numel() else 0.0) > SAME * size:
            short = m.lse + torch.log1p(-m.top) if lse and name == "heaviest key dropped" else None
            yield Mutant(name, out, short)
    if lse and bool((torch.isfinite(m.lse) & (m.lse != 0)).any()):
        yield Mutant("LSE in base 2", None, m.lse / math.log(2.0))


def _without_heaviest(m: Moments) -> Tensor:
    """(out - p v) / (1 - p) for the key with the largest weight; rows of a single key stay."""
    weight = m.top[..., None]
    several = (m.seen > 1)[..., None] & (weight < 1.0)
    return torch.where(several, (m.out - weight * m.top_value) / (1.0 - weight).clamp_min(1e-30), m.out)
