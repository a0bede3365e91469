"""What is searched: points in an order, and a look at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .look import Look


class Axis(Protocol):
    """A line of points between two ends, in its own order: commits by history, versions and sizes ascending."""

    @property
    def name(self) -> str: ...

    @property
    def points(self) -> Sequence[str]: ...

    def look(self, point: str, log: Callable[[str], str]) -> Look:
        """Run at one point; ``log(name)`` says where output goes, empty for nowhere."""
        ...

    def command(self, point: str) -> str:
        """What to type to see that point alone."""
        ...

    def away(self) -> Axis:
        """The same axis for looks on another machine: it can be pickled, and leaves nothing there."""
        ...
