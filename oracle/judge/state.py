"""Everything that is gathered over the chunks of one attention answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .evidence import Peak, Places, Rows
from .tally import Sums

#: What is kept a row: the four numbers of its quadratic form, its coherent part, and its signed sums.
ROWS = ("observed", "trace", "frobenius2", "norm", "coherent", "signed", "sizes", "known", "drift")


@dataclass(slots=True)
class State:
    """Largest ratios with their places, axes that were hit, and sums by row and by column."""

    shape: tuple[int, int, int]
    """s, h, v"""
    z: float
    """Deviations that one element may lie off."""
    z_suspect: float
    """Deviations from which on one is suspect."""
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
    error: Peak = field(default_factory=Peak)
    """Error, and the eager one's, over the chunks that are calibrated."""
    eager: Peak = field(default_factory=Peak)
    rows: dict[str, Rows] = field(default_factory=lambda: {name: Rows() for name in ROWS})
    columns: Sums | None = None
    mutants: dict[str, bool] = field(default_factory=dict)
    """Name of a wrong answer: whether it was rejected."""

    def row_sums(self) -> Sums:
        """The quadratic forms of all rows [s,h]."""
        return Sums(*(self.rows[name].all() for name in ("observed", "trace", "frobenius2", "norm")))

    @classmethod
    def of(cls, shape: tuple[int, int, int], device: torch.device, *, z: float, z_suspect: float, x: float) -> State:
        strange, bad = Places.of(shape, device), Places.of(shape, device)
        return cls(shape, z, z_suspect, x, strange, bad, Places.of(shape[:2], device))
