"""Everything that is gathered over the chunks of one attention answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .evidence import Peak, Places, Rows
from .tally import Sums


@dataclass(slots=True)
class State:
    """Largest ratios with their places, axes that were hit, sums by group, and signed sums by row."""

    shape: tuple[int, int, int]
    """s, h, v"""
    z: float
    """Deviations that one element may lie off."""
    x: float
    """Exponent of the quadratic bound."""
    strange: Places
    bad: Places
    bad_lse: Places
    element: Peak = field(default_factory=Peak)
    """Error over budget; beside it place, observed, expected, budget."""
    deviation: Peak = field(default_factory=Peak)
    certain: Peak = field(default_factory=Peak)
    lse: Peak = field(default_factory=Peak)
    row: Peak = field(default_factory=Peak)
    row_exponent: Peak = field(default_factory=Peak)
    query: Peak = field(default_factory=Peak)
    query_exponent: Peak = field(default_factory=Peak)
    heads: Sums | None = None
    columns: Sums | None = None
    total: Sums | None = None
    signed: Rows = field(default_factory=Rows)
    sizes: Rows = field(default_factory=Rows)
    known: Rows = field(default_factory=Rows)
    drift: Rows = field(default_factory=Rows)
    mutants: dict[str, bool] = field(default_factory=dict)
    """Name of a wrong answer: whether it was rejected."""

    @classmethod
    def of(cls, shape: tuple[int, int, int], device: torch.device, *, z: float, x: float) -> State:
        strange, bad = Places.of(shape, device), Places.of(shape, device)
        return cls(shape, z, x, strange, bad, Places.of(shape[:2], device))
