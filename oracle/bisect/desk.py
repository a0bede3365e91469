"""Where looks are made: one after another in this process, or several at once in the slots of an engine.

A search asks for one look and says which it may ask for next. Those are begun while slots are free, and kept until they
are asked for: a look counts when the search asks for it and not before, so nothing counts twice and nothing that only
a slot had time for counts at all.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..fleet.calls import StoppableCalls
from .axis import Axis
from .journal import Journal
from .look import Look

#: Workers or nodes that a look may lose before its point is skipped.
TRIES = 3
#: Looks ahead that are weighed for each slot: several ways lead to the same one.
_WEIGHED = 8
#: Most of a log that is brought here from another machine, bytes of its end.
_LOG = 1 << 20

Wish = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Begun:
    """A look under way, or made and not asked for yet."""

    point: str
    future: Future[Any]
    log: Callable[[str], str]
    number: int
    tries: int = 1
    made: Look | None = None


class Desk:
    """Makes the looks at an axis, each a line of the journal when it counts."""

    def __init__(self, axis: Axis, journal: Journal, hands: StoppableCalls | None = None) -> None:
        """``hands``: where looks are made; None: here, one at a time."""
        self.axis, self.journal, self.hands = axis, journal, hands
        self._begun: dict[str, deque[_Begun]] = defaultdict(deque)
        self._count = 0
        self._axis = axis.away() if hands is not None and hands.away else axis

    @property
    def left_over(self) -> int:
        """Looks that were made ahead and never asked for."""
        return self.journal.ahead + sum(one.made is not None for looks in self._begun.values() for one in looks)

    def known(self, point: str, number: int) -> Look | None:
        """The look at a point that comes after ``number`` others, where it is made already."""
        stored = self.journal.stored(point)
        if number < len(stored):
            return stored[number]
        begun = self._begun[point]
        place = number - len(stored)
        return begun[place].made if place < len(begun) else None

    def look(self, point: str, coming: Iterable[Wish] = (), idle: Callable[[str], bool] = lambda point: False) -> Look:
        """The next look at a point.

        ``coming``: what may be asked for after it, the likeliest first; the number counts looks at the same point from
        this one on. ``idle``: whether a point cannot be asked for again.
        """
        if self.journal.stored(point):
            return self.journal.take(point)
        if self.hands is None:
            found = self.axis.look(point, self.journal.log())
        else:
            found = self._made(point, coming, idle, self.hands)
        return self.journal.count(point, found)

    def _made(self, point: str, coming: Iterable[Wish], idle: Callable[[str], bool], hands: StoppableCalls) -> Look:
        self._clear(idle, hands)
        if not self._begun[point]:
            self._make_room(point, hands)
            self._begin(point, hands)
        wanted = self._begun[point][0]
        self._take_in(hands)
        for other, number in islice(coming, _WEIGHED * hands.slots):
            if len(self._under_way()) >= hands.slots:
                break
            if number >= len(self.journal.stored(other)) + len(self._begun[other]):
                self._begin(other, hands)
        while wanted.made is None:
            wait([one.future for one in self._under_way()], return_when=FIRST_COMPLETED)
            self._take_in(hands, wanted)
        self._begun[point].popleft()
        return wanted.made

    def _under_way(self) -> list[_Begun]:
        return [one for looks in self._begun.values() for one in looks if one.made is None]

    def _clear(self, idle: Callable[[str], bool], hands: StoppableCalls) -> None:
        for one in self._under_way():
            if idle(one.point):
                self._drop(one, hands)

    def _make_room(self, point: str, hands: StoppableCalls) -> None:
        """What is asked for goes first: it takes the slot of the look that was begun last."""
        under_way = self._under_way()
        if len(under_way) >= hands.slots:
            self._drop(max(under_way, key=lambda one: one.number), hands)

    def _drop(self, one: _Begun, hands: StoppableCalls) -> None:
        hands.stop(one.future)
        self._begun[one.point].remove(one)

    def _begin(self, point: str, hands: StoppableCalls) -> None:
        log = self.journal.log()
        self._count += 1
        self._begun[point].append(_Begun(point, self._call(point, log, hands), log, self._count))

    def _call(self, point: str, log: Callable[[str], str], hands: StoppableCalls) -> Future[Any]:
        return hands.call(elsewhere, self._axis, point) if hands.away else hands.call(self._axis.look, point, log)

    def _take_in(self, hands: StoppableCalls, wanted: _Begun | None = None) -> None:
        """Looks that are ready; what is not ``wanted`` now is written down as made ahead."""
        for one in self._under_way():
            if not one.future.done():
                continue
            error = one.future.exception()
            if error is None:
                one.made = self._brought(one) if hands.away else one.future.result()
            elif not hands.lost(error):
                raise getattr(error, "cause", None) or error  # of Ray: what the look raised on its machine
            elif one.tries < TRIES:
                one.tries += 1
                one.future = self._call(one.point, one.log, hands)
            else:
                one.made = Look("skip", detail=f"{TRIES} workers were lost with it: {type(error).__name__}")
            if one.made is not None and one is not wanted:
                self.journal.keep(one.point, one.made)

    @staticmethod
    def _brought(one: _Begun) -> Look:
        """A look from elsewhere, its logs written here."""
        look: Look
        look, logs = one.future.result()
        named = {name: one.log(name) for name in logs}
        for name, content in logs.items():
            if named[name]:
                Path(named[name]).write_bytes(content)
        return replace(look, log=named.get(look.log, ""))

    def close(self) -> None:
        """End what is still under way."""
        if self.hands is not None:
            self.hands.close()


def elsewhere(axis: Axis, point: str) -> tuple[Look, dict[str, bytes]]:
    """One look on another machine: what it showed, its log by name, and the ends of all logs."""
    with tempfile.TemporaryDirectory(prefix="attnoracle-look-") as folder:
        found = axis.look(point, lambda name: str(Path(folder) / name))
        logs = {file.name: file.read_bytes()[-_LOG:] for file in Path(folder).iterdir() if file.is_file()}
    return replace(found, log=Path(found.log).name if found.log else ""), logs
