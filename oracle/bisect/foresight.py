"""Looks that a search may ask for next, the likeliest first, so that several can be made at once.

The search itself stays one look after another: which looks count, and in what order, does not depend on how many are
made at once. While one is made, what the search would ask next after each of its labels is known already; followed on
over several looks this is a tree, and N slots that take its likeliest N nodes give about log2(N + 1) looks a round.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Protocol

from .look import Label
from .search import Boundary

#: A look at a point, by the number of looks at it that the search would ask for before.
Wish = tuple[int, int]


class State(Protocol):
    """How far a search has come; telling it a label gives the next state and leaves this one."""

    def wants(self) -> int | None: ...

    def told(self, point: int, label: Label) -> State: ...

    def odds(self, point: int) -> dict[Label, float]: ...

    def idle(self, point: int) -> bool: ...

    def answer(self) -> Boundary: ...


def ahead(
    state: State,
    known: Callable[[int, int], Label | None],
    after: Callable[[Boundary], Sequence[int]] = lambda answer: (),
    used: Counter[int] | None = None,
) -> Iterator[Wish]:
    """Looks from this state on, by falling probability that the search asks for them.

    ``known(point, n)``: the label of the look with that number where it is made already. ``after``: what is looked at
    once there is an answer. ``used``: looks that are asked for before this state is reached.
    """
    order = count()
    waiting = [(-1.0, next(order), state, used or Counter[int]())]
    while waiting:
        weight, _, here, asked = heapq.heappop(waiting)
        point = here.wants()
        if point is None:
            for one in after(here.answer()):
                yield one, asked[one]
            continue
        number = asked[point]
        yield point, number
        label = known(point, number)
        odds = here.odds(point) if label is None else {label: 1.0}
        for told, chance in odds.items():
            if chance > 0:
                following = (weight * chance, next(order), here.told(point, told), asked + Counter({point: 1}))
                heapq.heappush(waiting, following)
