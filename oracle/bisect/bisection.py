"""The bisection of a line of points: verify both ends, search, confirm, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ..cause.signature import part_of
from ..errors import BadInput
from .journal import Journal
from .look import Label, Look, Settings
from .noisy import END_LOOKS, MOST_END_LOOKS, Tally, distinct, noisy_boundary
from .search import Boundary, boundary


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
) -> Found:
    """The boundary between two points of an axis.

    Raises BadInput where there is nothing between the ends to search, or where the ends do not show what they are
    called, with what they showed.
    """
    settings = settings or Settings()
    started = time.monotonic()
    points, first = _between(axis, good, bad)
    search = _Search(axis, journal, points, on_look)
    flaky = search.verify(good, bad, settings)
    answer, confidence = search.run(first, flaky, settings)
    if not flaky and not search.confirmed(answer, first):
        flaky = True
        answer, confidence = search.run(first, flaky, settings)
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


def _some(points: Sequence[str], shown: int = 8) -> str:
    if len(points) <= shown:
        return ", ".join(points)
    return ", ".join((*points[: shown // 2], "…", *points[-shown // 2 :]))


class _Search:
    def __init__(
        self, axis: Axis, journal: Journal, points: Sequence[str], on_look: Callable[[str, Look], None]
    ) -> None:
        self.axis, self.journal, self.points, self.on_look = axis, journal, points, on_look
        self.signature = ""
        self.tally = Tally.of(len(points))

    def look(self, point: str) -> Look:
        found = self.journal.look(point, lambda: self.axis.look(point, self._log))
        if found.label == "bad" and self.signature and not part_of(found.signature, self.signature):
            told = f"another failure: {found.signature}, looking for {self.signature}"
            found = replace(found, label="skip", detail=told)
            self.journal.looks[-1] = (point, found)
        self.on_look(point, found)
        return found

    def _log(self, name: str) -> str:
        return str(self.journal.log(name) or "")

    def at(self, place: int) -> Label:
        label = self.look(self.points[place]).label
        self.tally.add(place, label)
        return label

    def verify(self, good: str, bad: str, settings: Settings) -> bool:
        """Looks at both ends; whether verdicts are flaky. Raises BadInput where an end is not what it is called."""
        runs = END_LOOKS if settings.flaky else settings.runs
        seen: dict[str, list[Look]] = {point: [] for point in (bad, good)}
        for point in (bad, good):
            self._repeat(point, seen[point], runs)
            if point == bad:
                self.signature = self._most_common(seen[bad])
        flaky = settings.flaky or any(len({look.label for look in looks}) > 1 for looks in seen.values())
        if flaky:
            self._repeat_until_distinct(seen[good], seen[bad], good, bad)
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

    def _repeat(self, point: str, looks: list[Look], runs: int) -> None:
        while len(looks) < runs:
            found = self.journal.look(point, lambda: self.axis.look(point, self._log))
            self.on_look(point, found)
            looks.append(found)
            if found.label == "skip":
                return

    def _repeat_until_distinct(self, of_good: list[Look], of_bad: list[Look], good: str, bad: str) -> None:
        """As many looks at both ends as tell their failure rates apart, within limits."""
        for runs in range(END_LOOKS, MOST_END_LOOKS + 1, END_LOOKS):
            self._repeat(bad, of_bad, runs)
            self._repeat(good, of_good, runs)
            labels = [[look.label for look in looks] for looks in (of_good, of_bad)]
            if distinct(*labels) or "skip" in (*labels[0], *labels[1]):
                return

    @staticmethod
    def _most_common(looks: Sequence[Look]) -> str:
        names = Counter(look.signature for look in looks if look.label == "bad")
        return names.most_common(1)[0][0] if names else ""

    def run(self, first: Label, flaky: bool, settings: Settings) -> tuple[Boundary, float]:
        if not flaky:
            return boundary(len(self.points), first, self.at), 1.0
        found = noisy_boundary(self.tally, first, self.at, confidence=settings.confidence, most=settings.most)
        return found.boundary, found.confidence

    def confirmed(self, answer: Boundary, first: Label) -> bool:
        """Whether both sides of the boundary show the same once more; the ends were looked at more than once."""
        last: Label = "bad" if first == "good" else "good"
        sides = ((answer.before, first), (answer.after, last))
        inner = [(place, label) for place, label in sides if 0 < place < len(self.points) - 1]
        seen = [self.at(place) == label for place, label in inner]  # both, for what may follow needs both
        return all(seen)


def _counts(labels: Sequence[str]) -> str:
    return f"{labels.count('bad')} of {len(labels)} failed"
