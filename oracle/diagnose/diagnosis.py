"""One failure, diagnosed: what the verdict gives away, the map, the ranked hypotheses, the stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...optimized.contract import Contract
from ..calling.call import Raised
from ..case import Case
from ..cause.again import apart, fails_later
from ..cause.named import Make
from ..check import check
from ..faults.simulated import KERNELS
from ..inputs import Inputs
from ..judge.conventions import NAMED
from ..judge.exact import NOTHING_KNOWN
from ..sequence import later_cases
from ..verdict import Verdict
from .errormap import ErrorMap, error_maps
from .hypothesis import Hypothesis
from .marks import marks
from .observation import Observation, observe, observed
from .probes import Located, locate
from .ranking import PARTLY, Ranked, rank, tied

#: Hypotheses that are kept.
SHOWN = 5
#: Seconds for a kernel in a process of its own.
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

    case: Case
    verdict: Verdict | None
    """None for outputs of a bundle whose kernel was not run."""
    marks: tuple[Hypothesis, ...]
    maps: tuple[ErrorMap, ...]
    ranked: tuple[Ranked, ...]
    located: Located | None
    seconds: float
    note: str = ""
    """Why a part is missing."""
    instead: Case | None = None
    """What was diagnosed: a later call of ``case`` that is wrong by itself, without a call before it."""
    tied: tuple[Hypothesis, ...] = ()
    """The best hypothesis and those that explain the case as well; more of them than ``ranked`` may hold."""

    @property
    def conclusion(self) -> str:
        """One sentence, and another where a later call was wrong by itself."""
        alone = f"Nothing is kept between calls: {self.instead.id} fails alone. " if self.instead else ""
        return alone + self._cause()

    def _cause(self) -> str:
        if self.verdict is not None and not self.verdict.bad:
            return f"Nothing to diagnose: the verdict is {self.verdict.status}."
        if self.marks:
            return self.marks[0].words
        if self.ranked and self.ranked[0].fits:
            return self._among(self.ranked[0].hypothesis.words)
        if read := self._read_off():
            return read
        if self.ranked and self.ranked[0].explained >= PARTLY:
            best = self.ranked[0]
            words = self._among(best.hypothesis.words)
            return f"Nothing explains it whole; nearest, with {best.explained:.0%} of it: {words}"
        return "Nothing in the dictionary explains it." + (f" {self.note}" if self.note else "")

    def _read_off(self) -> str:
        """What the judge found to explain all that is wrong, a convention or a pattern; empty where it found none."""
        findings = self.verdict.findings if self.verdict else ()
        if findings and all(finding.convention for finding in findings):
            return f"The answer is right {findings[0].message.partition(NAMED)[2]}."
        if findings and all(f.check == "exact" and not f.message.endswith(NOTHING_KNOWN) for f in findings):
            return " ".join(f"{f.message[:1].upper()}{f.message[1:]}." for f in findings)
        return ""

    def _among(self, words: str) -> str:
        if len(self.tied) < 2:
            return words
        return (
            f"One of {len(self.tied)} that this case cannot tell apart: {words} "
            "Diagnose it on a further failing case, of other lengths or heads, to tell them apart."
        )


def diagnose(case: Case, make: Make, device: str = "cpu", *, name: str = "") -> Diagnosis:
    """Judge a kernel on a case and look for the cause, in later calls on the same memory where the first is right.

    ``name``: what the kernel is known by to a process of its own. Raises BadInput for a case that cannot be.
    """
    started = time.monotonic()
    verdict = check(case, make(), device=device, sequence=True)
    verdict = replace(verdict, implementation=name) if name else verdict
    if name and fails_later(verdict) and (other := _alone(case, name, device)) is not None:
        found = diagnose(other, make, device)
        return replace(found, verdict=verdict, instead=other, seconds=time.monotonic() - started)
    if not verdict.bad:
        return Diagnosis(case, verdict, (), (), (), None, time.monotonic() - started)
    given = tuple(marks(verdict, make, device))
    if verdict.status == "ERROR":
        return Diagnosis(case, verdict, given, (), (), None, time.monotonic() - started)
    if case.operator not in KERNELS:
        note = f"It has no entries for {case.operator}."
        return Diagnosis(case, verdict, given, (), (), None, time.monotonic() - started, note)
    try:
        seen = observe(case, make(), device)
    except Raised as raised:
        return Diagnosis(case, verdict, given, (), (), None, time.monotonic() - started, f"It raised: {raised}")
    return _with_answer(case, verdict, given, seen, locate(case, make(), device), started)


def _alone(case: Case, name: str, device: str) -> Case | None:
    """The case of the later calls, if the first call of a process is wrong on it as well."""
    other = next(later_cases(case))
    with apart(name, device, PATIENCE) as run:
        findings = run(other).findings
    return other if any(finding.check not in ("rerun", "memory", "sequence") for finding in findings) else None


def diagnose_outputs(
    case: Case,
    contract: Contract,
    draw: Callable[[], Inputs],
    outputs: Mapping[str, Any],
) -> Diagnosis:
    """The same for an answer at hand, without running the kernel: that of a bundle from another machine."""
    started = time.monotonic()
    return _with_answer(case, None, (), observed(case, contract, draw(), outputs, draw), None, started)


def _with_answer(
    case: Case,
    verdict: Verdict | None,
    given: tuple[Hypothesis, ...],
    seen: Observation,
    located: Located | None,
    started: float,
) -> Diagnosis:
    shapes = {name: seen.answer[name].shape for name in seen.answer}
    same_shape = all(shapes.get(name) == exact.shape for name, exact in seen.expected.exact.items() if name in shapes)
    ranked = rank(seen) if same_shape else []
    worth = tuple(one for one in ranked[:SHOWN] if one.explained >= PARTLY or one.fits)
    maps, seconds = tuple(error_maps(seen)), time.monotonic() - started
    return Diagnosis(case, verdict, given, maps, worth, located, seconds, tied=tied(ranked))
