"""Which job a free worker takes next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from ..case import Case
from .worker import Pair

Cost = Callable[[Case], int]
#: What a heap holds: the cost with its sign turned, the place in the order of arrival, the job.
_Entry = tuple[int, int, int]


class Queue(Protocol):
    """Jobs that nobody has taken."""

    def __bool__(self) -> bool: ...

    def add(self, job: int, pair: Pair) -> None: ...

    def take(self, served: str | None) -> int | None:
        """A job for a worker that served this implementation last (None: it is fresh); None: it is to be replaced."""

    def drop(self, implementation: str) -> list[int]:
        """Take out all that is left of an implementation."""


class Longest:
    """The longest job first, whoever asks, or one of them would run alone at the end; equal costs keep their order."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._left: list[_Entry] = []
        self._names: dict[int, str] = {}
        self._count = count()

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, job: int, pair: Pair) -> None:
        self._names[job] = pair[1]
        heapq.heappush(self._left, (-self._cost(pair[0]), next(self._count), job))

    def take(self, served: str | None) -> int | None:
        job = heapq.heappop(self._left)[2]
        del self._names[job]
        return job

    def drop(self, implementation: str) -> list[int]:
        found = [job for _, _, job in sorted(self._left) if self._names[job] == implementation]
        self._left = [entry for entry in self._left if self._names[entry[2]] != implementation]
        heapq.heapify(self._left)
        for job in found:
            del self._names[job]
        return found


class ByImplementation:
    """A worker serves one implementation only; a fresh one starts with that of which most is left."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._left: dict[str, list[_Entry]] = {}
        self._count = count()

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, job: int, pair: Pair) -> None:
        heapq.heappush(self._left.setdefault(pair[1], []), (-self._cost(pair[0]), next(self._count), job))

    def take(self, served: str | None) -> int | None:
        if served is None:
            served = max(self._left, key=lambda name: -sum(cost for cost, _, _ in self._left[name]))
        if served not in self._left:
            return None
        job = heapq.heappop(self._left[served])[2]
        if not self._left[served]:
            del self._left[served]
        return job

    def drop(self, implementation: str) -> list[int]:
        return [job for _, _, job in sorted(self._left.pop(implementation, ()))]
