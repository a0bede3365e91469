"""What was seen against what is allowed, gathered chunk by chunk.

Squared errors are added up over rows (query, head), heads, queries and columns, so that one bad row among millions and
one bad column in every row are seen even where each element stays inside its own budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .bounds import quadratic_exponent, quadratic_limit
from .budget import Budget
from .formats import rounded
from .moments import Moments


@dataclass(slots=True)
class Sums:
    """The quadratic form of one kind of group: observed sum of squares and the three numbers that bound it."""

    observed: Tensor
    trace: Tensor
    frobenius2: Tensor
    norm: Tensor

    def ratio(self, x: float) -> Tensor:
        """Observed over limit; above 1 is beyond chance."""
        limit = quadratic_limit(self.trace, self.frobenius2, self.norm, x)
        return torch.where(limit > 0, self.observed / limit.clamp_min(1e-300), torch.where(self.observed > 0, 1e9, 0.0))

    def exponent(self) -> Tensor:
        return quadratic_exponent(self.observed, self.trace, self.frobenius2, self.norm)


@dataclass(frozen=True, slots=True)
class Squares:
    """Squared errors of one chunk before they are added up: what exceeds working precision, and its null model.

    observed [x,m,v]; trace [x,m,v]; noise [x,m]: trace of the P part alone, whose elements one row correlates;
    coherent [x,m]; grid [x,m,v]: variance of the output rounding; share [x,m]: largest share of one direction.
    """

    observed: Tensor
    trace: Tensor
    noise: Tensor
    coherent: Tensor
    grid: Tensor
    directions: Tensor
    leading: Tensor


def squares(error: Tensor, m: Moments, b: Budget, output: str, columns: float) -> Squares:
    """``columns``: effective number of independent value columns (participation ratio of V's second moments)."""
    observed = (error.abs() - b.working).clamp_min(0.0) ** 2
    # The rounding of the exact answer is known; where it exceeds that of a uniform error, it is what to expect.
    known = (rounded(m.out, output) - m.out) ** 2
    grid = torch.maximum(known, b.usual * b.usual / 3.0)
    noise = (b.variance - b.coherent).sum(-1)
    directions = (m.spread + 1.0 / columns).clamp_max(1.0)
    leading = ((m.spread.sqrt() + columns**-0.5) ** 2).clamp_max(1.0)
    return Squares(observed, grid + b.variance, noise, b.coherent.sum(-1), grid, directions, leading)


def row_sums(s: Squares) -> Sums:
    """One group a row [x,m]."""
    grid2 = (s.grid * s.grid).sum(-1)
    frobenius2 = grid2 + s.noise * s.noise * s.directions + s.coherent * s.coherent
    norm = s.grid.amax(-1) + s.noise * s.leading + s.coherent
    return Sums(s.observed.sum(-1), s.trace.sum(-1), frobenius2, norm)


def pooled(sums: Sums, coherent: Tensor, axes: tuple[int, ...]) -> Sums:
    """Rows added up over ``axes``; their random parts are independent, their coherent parts are not."""
    shared = coherent.sum(axes)
    return Sums(
        sums.observed.sum(axes),
        sums.trace.sum(axes),
        sums.frobenius2.sum(axes) + shared * shared,
        sums.norm.amax(axes) + shared,
    )


def column_sums(s: Squares, b: Budget) -> Sums:
    """One group a value column [v]: a column's elements come from different rows."""
    axes = (0, 1)
    shared = b.coherent.sum(axes)
    return Sums(
        s.observed.sum(axes),
        s.trace.sum(axes),
        (s.trace * s.trace).sum(axes) + shared * shared,
        s.trace.amax(0).amax(0) + shared,
    )


def add(a: Sums | None, b: Sums) -> Sums:
    """Two disjoint sets of rows of the same groups."""
    if a is None:
        return b
    return Sums(a.observed + b.observed, a.trace + b.trace, a.frobenius2 + b.frobenius2, torch.maximum(a.norm, b.norm))
