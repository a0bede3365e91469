"""Goes through the axes until none of them gives a smaller case that fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..case import Case
from ..cause.signature import Signature
from ..errors import OracleError
from ..verdict import Verdict
from .moves import MOVES, Move
from .trials import Trials

#: Passes over all axes; a later pass finds what an earlier one could not reach yet.
PASSES = 4
#: Steps of one axis in one pass.
STEPS = 64


@dataclass(frozen=True, slots=True)
class Step:
    """One accepted step."""

    axis: str
    case: Case


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest case found."""

    original: Case
    case: Case
    verdict: Verdict
    """On the smallest case; for one that fails now and then, a verdict on which it failed."""
    signature: Signature
    steps: tuple[Step, ...]
    slips: tuple[Verdict, ...]
    """Other failures met on the way: cases of their own."""
    runs: int
    seconds: float
    rate: float
    """Share of runs on which the original case failed."""
    confidence: float
    patience: int
    """Quiet runs after which a smaller case was given up."""

    def fixture(self) -> str:
        """Two lines for a file in ``fixtures/cases``."""
        return f"# {self.verdict.implementation}: {self.signature}.\n{self.case.id}\n"


def shrink(case: Case, trials: Trials, *, flaky: bool = False, most_seconds: float = 120.0) -> Shrunk:
    """The smallest case found within ``most_seconds``. Raises BadInput if ``case`` does not fail."""
    started = time.monotonic()
    verdict = trials.begin(case, flaky=flaky)
    late: Callable[[], bool] = lambda: time.monotonic() - started > most_seconds  # noqa: E731
    smallest, steps = case, list[Step]()
    trials.seen[case] = True
    for _ in range(PASSES):
        before = smallest
        for axis, move in MOVES:
            for smaller in _descent(move, smallest, trials, late):
                smallest = smaller
                steps.append(Step(axis, smaller))
        if smallest == before or late():
            break
    if smallest != case:
        verdict = _failure(smallest, trials) or verdict
    return Shrunk(
        original=case,
        case=smallest,
        verdict=verdict,
        signature=trials.signature,
        steps=tuple(steps),
        slips=tuple(trials.slips.values()),
        runs=trials.runs,
        seconds=time.monotonic() - started,
        rate=trials.rate,
        confidence=trials.confidence,
        patience=trials.patience,
    )


def _descent(move: Move, case: Case, trials: Trials, late: Callable[[], bool]) -> list[Case]:
    """The cases taken one after another along one axis."""
    taken: list[Case] = []
    for _ in range(STEPS):
        found = next((smaller for smaller in move(case) if not late() and _fails(smaller, trials)), None)
        if found is None:
            break
        case = found
        taken.append(found)
    return taken


def _fails(case: Case, trials: Trials) -> bool:
    try:
        return trials.fails(case)
    except OracleError:
        return False  # an option, kind or geometry that does not fit the smaller case


def _failure(case: Case, trials: Trials) -> Verdict | None:
    """A verdict on which the case fails."""
    for _ in range(trials.patience):
        verdict = trials.run(case)
        if verdict.bad:
            return verdict
    return None
