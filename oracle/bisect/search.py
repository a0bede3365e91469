"""The boundary on a line of points whose verdicts can be trusted: binary search with skips.

Points lie in order; the first is of one label, the last of the other, and somewhere between them the label changes. A
point that cannot be judged is passed over, as ``git bisect skip`` does, and the answer says which points are left
between the two sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .look import Label


@dataclass(frozen=True, slots=True)
class Boundary:
    """The last point like the first end and the first point like the last end; ``between`` could not be judged."""

    before: int
    after: int
    between: tuple[int, ...] = ()


def boundary(count: int, first: Label, look: Callable[[int], Label]) -> Boundary:
    """Where the label changes among points 0 … count - 1; the ends are taken as known, ``first`` that of point 0.

    Looks at about log2(count) points and one more for each skip. Raises ValueError for fewer than two points.
    """
    if count < 2:
        raise ValueError(f"bisection: expected at least two points, got {count}")
    low, high = 0, count - 1
    skipped: set[int] = set()
    while True:
        open_points = high - low - 1 - sum(low < point < high for point in skipped)
        if open_points == 0:
            return Boundary(low, high, tuple(range(low + 1, high)))
        point = _nearest((low + high) // 2, low, high, skipped)
        label = look(point)
        if label == "skip":
            skipped.add(point)
        elif label == first:
            low = point
        else:
            high = point


def _nearest(middle: int, low: int, high: int, skipped: set[int]) -> int:
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
