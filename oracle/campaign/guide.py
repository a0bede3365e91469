"""Which cases come next: those whose classes were tried least, and the neighbours of the closest calls.

Cases are planned in rounds. A round follows from the seed, its number and what the rounds before the last ``AHEAD``
came to, so it does not depend on which worker was faster; while it is planned, the last ones may still be under way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from ..case import Case
from ..cause.named import operator_of
from ..fleet.worker import Pair
from .classes import classes
from .groups import GROUPS, Class, Classes
from .mutate import mutated
from .result import Result
from .space import Space, draw, drawn_case

#: Cases of a round.
ROUND = 16
#: Candidates of which the one that covers most that is new is taken.
CANDIDATES = 12
#: Of so many places in a round one goes to a neighbour of a closest call, whatever it covers.
CLOSE = 8
#: Closest calls kept of one implementation, by each measure.
KEPT = 6
#: Draws until one fits an implementation.
_TRIES = 40
#: What one class of a group counts in the choice: a group of a hundred classes a case counts each for less than one
#: of five.
_WEIGHTS = {
    "lengths": 1.0, "meets": 1.0, "batch": 0.5, "values": 1.0, "contract": 1.0, "route": 1.0, "config": 1.0,
    "pairs": 0.1,
}  # fmt: skip

#: Whether a pair can be judged here, before anything is run.
Fits = Callable[[Pair], bool]


class Mode(StrEnum):
    """How cases are chosen."""

    coverage = "coverage"
    random = "random"


@dataclass(frozen=True, slots=True)
class Call:
    """A case that came close to failing."""

    implementation: str
    case: Case
    measure: str
    """``ratio``, of error to budget, at most 1; or ``margin``, of a selection: the smaller, the closer."""
    value: float

    @property
    def closeness(self) -> float:
        """For sorting: the larger, the closer."""
        return self.value if self.measure == "ratio" else -self.value


class Guide:
    """Remembers what was tried and seen, and plans rounds."""

    def __init__(self, space: Space, seed: int, fits: Fits, mode: Mode = Mode.coverage) -> None:
        self._space = space
        self._seed = seed
        self._fits = fits
        self._mode = mode
        self._tried: dict[str, Counter[Class]] = defaultdict(Counter)
        self._worth: dict[str, dict[Class, float]] = defaultdict(dict)
        """What a class counts in the choice; 1 for one that was never tried."""
        self.seen: dict[str, dict[str, set[Class]]] = defaultdict(lambda: {group: set() for group in GROUPS})
        """Implementation -> group -> classes that something was shown about."""
        self.drawn: dict[str, dict[str, set[Class]]] = defaultdict(lambda: {group: set() for group in GROUPS})
        """The same of every case that could have been taken: what can be reached, as far as that was met with."""
        self._calls: dict[tuple[str, str], list[Call]] = defaultdict(list)

    def plan(self, number: int) -> list[Pair]:
        """The pairs of a round; they count as tried from now on."""
        rng = Random(f"{self._seed}/{self._mode.value}/{number}")
        choose = self._random if self._mode is Mode.random else self._guided
        pairs = []
        for place in range(ROUND):
            pair = choose(rng, place)
            self.tried(pair)
            pairs.append(pair)
        return pairs

    def tried(self, pair: Pair) -> None:
        """Count a pair that was planned."""
        counts, worth, drawn = self._tried[pair[1]], self._worth[pair[1]], self.drawn[pair[1]]
        for group, names in classes(pair[0]).items():
            drawn[group] |= names
            for one in names:
                counts[one] += 1
                worth[one] = 1.0 / (1 + counts[one]) ** 2

    def learn(self, pair: Pair, result: Result) -> None:
        """Take in what a judgement came to."""
        case, name = pair
        if result.judged:
            seen = self.seen[name]
            for group, names in classes(case).items():
                seen[group] |= names
        if result.status == "PASS":
            for measure, value in (("ratio", result.ratio), ("margin", result.margin)):
                if value is not None:
                    self._keep(Call(name, case, measure, value))

    def closest(self) -> list[Call]:
        """The closest calls of all implementations, by measure, the closest first."""
        calls = [call for calls in self._calls.values() for call in calls]
        return sorted(calls, key=lambda call: (call.measure != "ratio", -call.closeness, call.implementation))

    def nearest(self) -> list[Call]:
        """The closest call of each implementation, by each measure."""
        first: dict[tuple[str, str], Call] = {}
        for call in self.closest():
            first.setdefault((call.measure, call.implementation), call)
        return list(first.values())

    def _keep(self, call: Call) -> None:
        calls = self._calls[call.implementation, call.measure]
        calls.append(call)
        calls.sort(key=lambda one: (-one.closeness, one.case.id))
        del calls[KEPT:]

    def _random(self, rng: Random, place: int) -> Pair:
        return self._first_fitting(draw(self._space, rng, edges=False) for _ in range(_TRIES))

    def _guided(self, rng: Random, place: int) -> Pair:
        name = rng.choice(self._space.implementations)
        operator = operator_of(name)
        close = [call.case for measure in ("ratio", "margin") for call in self._calls[name, measure]]
        if close and place % CLOSE == CLOSE - 1:
            near = ((mutated(self._space, rng.choice(close), rng), name) for _ in range(_TRIES))
            return self._first_fitting(near)
        best: tuple[float, Pair] | None = None
        left = CANDIDATES
        for _ in range(_TRIES):
            pair = (drawn_case(self._space, operator, rng, edges=True), name)
            if not self._fits(pair):
                continue
            worth = self._novelty(name, classes(pair[0]))
            if best is None or worth > best[0]:
                best = (worth, pair)
            left -= 1
            if not left:
                break
        return best[1] if best is not None else pair

    def _first_fitting(self, pairs: Iterable[Pair]) -> Pair:
        """The first that can be judged; the last where none can, so that its reason shows."""
        for pair in pairs:
            if self._fits(pair):
                break
        return pair

    def _novelty(self, name: str, found: Classes) -> float:
        """How much of what a case covers was tried little, group by group; a class that was never tried counts most."""
        worth, drawn = self._worth[name].get, self.drawn[name]
        total = 0.0
        for group, names in found.items():
            drawn[group] |= names
            total += _WEIGHTS[group] * sum([worth(one, 1.0) for one in names])
        return total
