"""Which job a free worker takes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from .case import Case
from .worker import Pair

Cost = Callable[[Case], int]


class Queue(Protocol):
    """Jobs that nobody has taken."""

    def __bool__(self) -> bool: ...

    def take(self, served: str | None) -> int | None:
        """A job for a worker that served this implementation last (None: it is fresh); None: it is to be replaced."""

    def drop(self, implementation: str) -> list[int]:
        """Take out all that is left of an implementation."""


class Longest:
    """The longest job first, whoever asks, or one of them would run alone at the end; equal costs keep their order."""

    def __init__(self, pairs: Sequence[Pair], jobs: Sequence[int], cost: Cost) -> None:
        self._left = deque(sorted(jobs, key=lambda i: -cost(pairs[i][0])))
        self._pairs = pairs

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, served: str | None) -> int | None:
        return self._left.popleft()

    def drop(self, implementation: str) -> list[int]:
        found = [job for job in self._left if self._pairs[job][1] == implementation]
        self._left = deque(job for job in self._left if self._pairs[job][1] != implementation)
        return found


class ByImplementation:
    """A worker serves one implementation only; a fresh one starts with that of which most is left."""

    def __init__(self, pairs: Sequence[Pair], jobs: Sequence[int], cost: Cost) -> None:
        self._cost = {job: cost(pairs[job][0]) for job in jobs}
        self._left: dict[str, deque[int]] = {}
        for job in sorted(jobs, key=lambda i: -self._cost[i]):
            self._left.setdefault(pairs[job][1], deque()).append(job)

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, served: str | None) -> int | None:
        if served is None:
            served = max(self._left, key=lambda name: sum(self._cost[job] for job in self._left[name]))
        if served not in self._left:
            return None
        job = self._left[served].popleft()
        if not self._left[served]:
            del self._left[served]
        return job

    def drop(self, implementation: str) -> list[int]:
        return list(self._left.pop(implementation, ()))
