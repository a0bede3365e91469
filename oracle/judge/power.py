"""The input-power check: would a plainly wrong answer pass on this input?

A case on which zeros, the mean of V, a neighbour's answer or a dropped key stay inside the budget proves nothing when a
kernel passes it. Such a case is WEAK. A wrong answer that happens to be the right one here is no test and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...reference.chunks import Chunk
from .moments import Moments

#: Below this share of the answer's size a wrong answer counts as the right one.
SAME = 1e-9
LSE_BASE = "LSE in base 2"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong answer in the chunk's own order: outputs [x,m,v], LSE [x,m], or both. It dies if either is seen."""

    name: str
    out: Tensor | None
    lse: Tensor | None = None


def mutants(m: Moments, chunk: Chunk, *, lse: bool, but: Container[str]) -> Iterator[Mutant]:
    """Wrong answers that differ from the right one on this chunk, except those named in ``but``."""
    head_axis, query_axis = (0, 1) if chunk.heads_first else (1, 0)
    candidates: dict[str, Callable[[], Tensor]] = {
        "zeros": lambda: torch.zeros_like(m.out),
        "mean of V": lambda: _mean(chunk, m),
        "heaviest key dropped": lambda: _without_heaviest(m),
        "next head's answer": lambda: m.out.roll(1, head_axis),
        "previous query's answer": lambda: m.out.roll(1, query_axis),
    }
    size = float(m.out.abs().max()) if m.out.numel() else 0.0
    for name, make in candidates.items():
        if name in but:
            continue
        out = make()
        if float((out - m.out).abs().max() if m.out.numel() else 0.0) > SAME * size:
            short = m.lse + torch.log1p(-m.top) if lse and name == "heaviest key dropped" else None
            yield Mutant(name, out, short)
    if lse and LSE_BASE not in but and bool((torch.isfinite(m.lse) & (m.lse != 0)).any()):
        yield Mutant(LSE_BASE, None, m.lse / math.log(2.0))


def _mean(chunk: Chunk, m: Moments) -> Tensor:
    """The unweighted mean of the values that each query sees."""
    if not chunk.values.shape[1]:
        return m.out
    values = torch.nan_to_num(chunk.values, 0.0, 0.0, 0.0)
    return ((chunk.allowed.to(values.dtype) @ values) / m.seen[:, : chunk.allowed.shape[1], None].clamp_min(1)).expand(
        m.out.shape
    )


def _without_heaviest(m: Moments) -> Tensor:
    """(out - p v) / (1 - p) for the key with the largest weight; rows of a single key stay."""
    weight = m.top[..., None]
    several = (m.seen > 1)[..., None] & (weight < 1.0)
    return torch.where(several, (m.out - weight * m.top_value) / (1.0 - weight).clamp_min(1e-30), m.out)
