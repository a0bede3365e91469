"""The bisection of a line of points: verify both ends, search, confirm, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeVar

from ..cause.signature import part_of
from ..errors import BadInput
from ..fleet.calls import StoppableCalls
from .axis import Axis
from .desk import Desk
from .foresight import State, Wish, ahead
from .journal import Journal
from .look import Label, Look, Settings
from .noisy import END_LOOKS, MOST_END_LOOKS, Doubtful, Tally, distinct
from .search import Boundary, Certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome."""

    axis: str
    direction: Literal["regression", "fix"]
    """Whether the axis runs from good to bad or from bad to good."""
    signature: str
    last: str
    """The last point like the first end."""
    first: str
    """The first point like the last end."""
    between: tuple[str, ...]
    """Points between them that could not be judged; the change is at ``first`` or at one of them."""
    confidence: float
    """Posterior probability where verdicts are flaky; 1 where they are taken as certain."""
    flaky: bool
    looks: int
    ahead: int
    """Looks that were made because a slot was free, and that the search never asked for; they count for nothing."""
    skipped: int
    seconds: float
    commands: tuple[str, str]
    evidence: tuple[tuple[str, Look], ...] = field(default=())


def bisect(
    axis: Axis,
    good: str,
    bad: str,
    journal: Journal,
    settings: Settings | None = None,
    on_look: Callable[[str, Look], None] = lambda point, look: None,
    hands: StoppableCalls | None = None,
) -> Found:
    """The boundary between two points of an axis.

    ``hands``: where looks are made, several at once; None: here, one after another. What is found is the same.
    Raises BadInput where there is nothing between the ends to search, or where the ends do not show what they are
    called, with what they showed.
    """
    settings = settings or Settings()
    started = time.monotonic()
    points, first = _between(axis, good, bad)
    desk = Desk(axis, journal, hands)
    search = _Search(desk, points, first, on_look)
    try:
        flaky = search.verify(good, bad, settings)
        answer, confidence = search.run(flaky, settings)
        if not flaky and not search.confirmed(answer):
            flaky = True
            answer, confidence = search.run(flaky, settings)
    finally:
        desk.close()
    result = Found(
        axis=axis.name,
        direction="regression" if first == "good" else "fix",
        signature=search.signature,
        last=points[answer.before],
        first=points[answer.after],
        between=tuple(points[place] for place in answer.between),
        confidence=confidence,
        flaky=flaky,
        looks=len(journal.looks),
        ahead=desk.left_over,
        skipped=sum(look.label == "skip" for _, look in journal.looks),
        seconds=time.monotonic() - started,
        commands=(axis.command(points[answer.before]), axis.command(points[answer.after])),
        evidence=tuple(journal.looks),
    )
    journal.note(last=result.last, first=result.first, between=result.between, confidence=result.confidence)
    return result


def _between(axis: Axis, good: str, bad: str) -> tuple[list[str], Label]:
    """The points from one end to the other, in the order of the axis, and the label of the first."""
    points = list(axis.points)
    for end in (good, bad):
        if end not in points:
            raise BadInput(f"{axis.name}: {end!r} is not among its {len(points)} points: {_some(points)}")
    low, high = sorted((points.index(good), points.index(bad)))
    if low == high:
        raise BadInput(f"{axis.name}: good and bad are the same point {good!r}; expected two")
    return points[low : high + 1], "good" if points[low] == good else "bad"


def _some(points: Sequence[str]) -> str:
    return ", ".join(points if len(points) <= 8 else (*points[:4], "…", *points[-4:]))


_State = TypeVar("_State", Certain, Doubtful)


class _Search:
    def __init__(self, desk: Desk, points: Sequence[str], first: Label, on_look: Callable[[str, Look], None]) -> None:
        self.desk, self.journal, self.points, self.first, self.on_look = desk, desk.journal, points, first, on_look
        self.last: Label = "bad" if first == "good" else "good"
        self.signature = ""
        self.tally = Tally.of(len(points))

    def at(self, place: int, coming: Iterator[Wish], state: State | None = None) -> Label:
        """The label of the next look at a point, another failure than the one that is looked for being a skip."""
        found = self._look(place, coming, state)
        if self._other(found):
            told = f"another failure: {found.signature}, looking for {self.signature}"
            found = replace(found, label="skip", detail=told)
            self.journal.looks[-1] = (self.points[place], found)
        self.on_look(self.points[place], found)
        return found.label

    def _look(self, place: int, coming: Iterator[Wish], state: State | None = None) -> Look:
        wishes = ((self.points[one], number) for one, number in coming)
        gone = {point for one, point in enumerate(self.points) if state.idle(one)} if state is not None else set()
        return self.desk.look(self.points[place], wishes, gone.__contains__)

    def _known(self, place: int, number: int) -> Label | None:
        found = self.desk.known(self.points[place], number)
        if found is None:
            return None
        return "skip" if self._other(found) else found.label

    def _ahead(self, state: State, used: Counter[int] | None = None) -> Iterator[Wish]:
        return ahead(state, self._known, self._sides if isinstance(state, Certain) else lambda answer: (), used)

    def verify(self, good: str, bad: str, settings: Settings) -> bool:
        """Looks at both ends; whether verdicts are flaky. Raises BadInput where an end is not what it is called."""
        runs = END_LOOKS if settings.flaky else settings.runs
        seen: dict[str, list[Look]] = {point: [] for point in (bad, good)}
        for point in (bad, good):
            self._repeat(point, seen, runs)
            if point == bad:
                self.signature = self._most_common(seen[bad])
        flaky = settings.flaky or any(len({look.label for look in looks}) > 1 for looks in seen.values())
        if flaky:
            self._repeat_until_distinct(seen, good, bad)
        labels = {
            point: ["skip" if self._other(look) else look.label for look in looks] for point, looks in seen.items()
        }
        for point, name in ((good, "good"), (bad, "bad")):
            if "skip" in labels[point]:
                look = next(look for look in seen[point] if look.label == "skip" or self._other(look))
                raise BadInput(f"the {name} end {point} cannot be judged: {look.detail or look.signature}")
            place = 0 if self.points[0] == point else len(self.points) - 1
            for label in labels[point]:
                self.tally.add(place, label)
        told = f"good {good}: {_counts(labels[good])}; bad {bad}: {_counts(labels[bad])}"
        if flaky:
            if not distinct(labels[good], labels[bad]):
                raise BadInput(f"the ends fail about as often as each other, nothing to search ({told})")
        elif labels[good][0] == "bad" and labels[bad][0] == "good":
            raise BadInput(f"the ends are the other way round: exchange --good and --bad ({told})")
        elif labels[good][0] != "good" or labels[bad][0] != "bad":
            raise BadInput(f"the ends do not differ as they are called ({told})")
        return flaky

    def _other(self, look: Look) -> bool:
        return look.label == "bad" and bool(self.signature) and not part_of(look.signature, self.signature)

    def _repeat(self, point: str, seen: dict[str, list[Look]], runs: int) -> None:
        looks = seen[point]
        while len(looks) < runs:
            found = self._look(self.points.index(point), self._ends(point, seen, runs))
            self.on_look(point, found)
            looks.append(found)
            if found.label == "skip":
                return

    def _ends(self, point: str, seen: dict[str, list[Look]], runs: int) -> Iterator[Wish]:
        """Looks that are left at both ends, in turn, and what is asked for if these are what they are called."""
        left = {self.points.index(end): runs - len(looks) for end, looks in seen.items()}
        turns = ((place, number) for number in range(runs) for place, most in left.items() if number < most)
        search = Certain.of(len(self.points), self.first)
        return chain(turns, self._ahead(search, Counter(left)))

    def _repeat_until_distinct(self, seen: dict[str, list[Look]], good: str, bad: str) -> None:
        """As many looks at both ends as tell their failure rates apart, within limits."""
        for runs in range(END_LOOKS, MOST_END_LOOKS + 1, END_LOOKS):
            self._repeat(bad, seen, runs)
            self._repeat(good, seen, runs)
            labels = [[look.label for look in looks] for looks in (seen[good], seen[bad])]
            if distinct(*labels) or "skip" in (*labels[0], *labels[1]):
                return

    @staticmethod
    def _most_common(looks: Sequence[Look]) -> str:
        names = Counter(look.signature for look in looks if look.label == "bad")
        return names.most_common(1)[0][0] if names else ""

    def run(self, flaky: bool, settings: Settings) -> tuple[Boundary, float]:
        """The boundary and how sure it is; the looks made so far are part of a noisy search."""
        if flaky:
            found = self._walk(Doubtful(self.tally.copy(), self.first, settings.confidence, settings.most)).result()
            return found.boundary, found.confidence
        return self._walk(Certain.of(len(self.points), self.first)).answer(), 1.0

    def _walk(self, state: _State) -> _State:
        while (point := state.wants()) is not None:
            label = self.at(point, self._ahead(state), state)
            self.tally.add(point, label)
            state = state.told(point, label)
        return state

    def _sides(self, answer: Boundary) -> list[int]:
        """The sides of a boundary that are looked at once more; the ends were looked at more than once."""
        return [place for place in (answer.before, answer.after) if 0 < place < len(self.points) - 1]

    def confirmed(self, answer: Boundary) -> bool:
        """Whether both sides of the boundary show the same once more."""
        expected = {answer.before: self.first, answer.after: self.last}
        sides = self._sides(answer)
        seen = []  # both, for what may follow needs both
        for place in sides:
            label = self.at(place, iter([(other, 0) for other in sides]))
            self.tally.add(place, label)
            seen.append(label == expected[place])
        return all(seen)


def _counts(labels: Sequence[str]) -> str:
    return f"{labels.count('bad')} of {len(labels)} failed"
