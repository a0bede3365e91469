"""The boundary on a line of points whose verdicts can be trusted: binary search with skips.

Points lie in order; the first is of one label, the last of the other, and somewhere between them the label changes. A
point that cannot be judged is passed over, as ``git bisect skip`` does, and the answer says which points are left
between the two sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .look import Label


@dataclass(frozen=True, slots=True)
class Boundary:
    """The last point like the first end and the first point like the last end; ``between`` could not be judged."""

    before: int
    after: int
    between: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Certain:
    """How far a search has come: the change lies between ``low`` and ``high``."""

    first: Label
    """Of point 0."""
    low: int
    high: int
    skipped: frozenset[int] = frozenset()
    looks: int = 0

    @classmethod
    def of(cls, count: int, first: Label) -> Certain:
        """At the start. Raises ValueError for fewer than two points."""
        if count < 2:
            raise ValueError(f"bisection: expected at least two points, got {count}")
        return cls(first, 0, count - 1)

    def wants(self) -> int | None:
        """The point to look at next; None: there is an answer."""
        open_points = self.high - self.low - 1 - sum(self.low < point < self.high for point in self.skipped)
        if open_points == 0:
            return None
        return _nearest((self.low + self.high) // 2, self.low, self.high, self.skipped)

    def told(self, point: int, label: Label) -> Certain:
        """After a look at that point."""
        if label == "skip":
            return replace(self, skipped=self.skipped | {point}, looks=self.looks + 1)
        if label == self.first:
            return replace(self, low=point, looks=self.looks + 1)
        return replace(self, high=point, looks=self.looks + 1)

    def odds(self, point: int) -> dict[Label, float]:
        """How likely each label is there: every boundary alike, and skips as often as so far."""
        last: Label = "bad" if self.first == "good" else "good"
        skip = len(self.skipped) / (self.looks + 1)
        first = (self.high - point) / (self.high - self.low)
        return {self.first: first * (1 - skip), last: (1 - first) * (1 - skip), "skip": skip}

    def idle(self, point: int) -> bool:
        """Whether no look at that point can be asked for any more."""
        return point < self.low or point > self.high

    def answer(self) -> Boundary:
        return Boundary(self.low, self.high, tuple(range(self.low + 1, self.high)))


def boundary(count: int, first: Label, look: Callable[[int], Label]) -> Boundary:
    """Where the label changes among points 0 … count - 1; the ends are taken as known, ``first`` that of point 0.

    Looks at about log2(count) points and one more for each skip. Raises ValueError for fewer than two points.
    """
    state = Certain.of(count, first)
    while (point := state.wants()) is not None:
        state = state.told(point, look(point))
    return state.answer()


def _nearest(middle: int, low: int, high: int, skipped: frozenset[int]) -> int:
    """The point nearest to the middle that was not skipped.

    Beside a skipped point the next is taken at growing distances from a 32nd of the line on, so that a long stretch
    that cannot be built costs a few looks and not one for each of its points.
    """
    if middle not in skipped:
        return middle
    stretch = max(1, (high - low) // 32)
    while True:
        for point in (middle - stretch, middle + stretch):
            if low < point < high and point not in skipped:
                return point
        if middle - stretch <= low and middle + stretch >= high:
            break
        stretch *= 2
    return next(point for point in range(low + 1, high) if point not in skipped)
