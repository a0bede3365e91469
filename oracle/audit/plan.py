"""What an audit runs: faults and right kernels as jobs with stable keys, so that an interrupted audit can go on."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..case import Case
from ..errors import BadInput, unknown
from ..faults import CHECKS, FAULTS, Fault
from ..properties.cases import cases_for
from .good import SEED_STRIDE, good_implementations, good_runs
from .trial import FAULT, candidates_first

#: Runs of right kernels: in full, and in the form for continuous integration.
GOOD_RUNS, QUICK_GOOD_RUNS = 2100, 150
#: Runs of right kernels against the properties.
PROPERTY_RUNS = 60


@dataclass(frozen=True, slots=True)
class Job:
    """One fault, or one run of one right kernel."""

    case: Case
    name: str
    """``fault:NAME``, or the name of an implementation."""

    @property
    def key(self) -> str:
        return self.name if self.is_fault else f"{self.name} {self.case.id}"

    @property
    def is_fault(self) -> bool:
        return self.name.startswith(FAULT)


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the jobs of an audit."""

    faults: tuple[str, ...] = ()
    """Names or patterns; empty: all."""
    checks: tuple[str, ...] = ()
    """Only faults that one of these is expected to kill; empty: all."""
    quick: bool = False
    seed: int = 0
    good_runs: int | None = None
    """None: 2,100, or 150 if ``quick``, or none where faults or checks are named."""
    device: str = "cpu"
    properties: bool = False
    """Properties take the place of all checks."""

    @property
    def whole(self) -> bool:
        """Whether this is an audit of the whole catalogue, in full."""
        return not (self.faults or self.checks or self.quick)


def plan(settings: Settings) -> list[Job]:
    """The jobs, faults first. Raises BadInput for unknown names (with the nearest) and where nothing is left."""
    faults = chosen(settings)
    count = settings.good_runs
    if settings.properties:
        firsts = [Job(first_case(fault, settings), FAULT + fault.name) for fault in faults]
        return firsts + [Job(case, name) for case, name in right_kernels(settings)]
    if count is None:
        named = settings.faults or settings.checks
        count = 0 if named else QUICK_GOOD_RUNS if settings.quick else GOOD_RUNS
    jobs = [Job(first_case(fault, settings), FAULT + fault.name) for fault in faults]
    return jobs + [Job(case, name) for case, name in good_runs(count, settings.seed, settings.device)]


def first_case(fault: Fault, settings: Settings) -> Case:
    """What names the job of a fault: its own case under the seed of the audit."""
    return candidates_first(fault, settings.seed).with_seed(settings.seed)


def right_kernels(settings: Settings) -> list[tuple[Case, str]]:
    """Every right kernel on the small cases of the properties, over as many seeds as make the count; none of a named
    few faults, and no shipped Triton kernel where the interpreter would run it for minutes."""
    named = settings.faults or settings.checks
    count = settings.good_runs if settings.good_runs is not None else 0 if named else PROPERTY_RUNS
    kernels = {
        name: one
        for name, one in good_implementations().items()
        if settings.device != "cpu" or not one.backend.startswith("triton")
    }
    pairs: list[tuple[Case, str]] = []
    for seed in range(count):
        if len(pairs) >= count:
            break
        for name, one in kernels.items():
            pairs += [(case, name) for case in cases_for(one, settings.device, settings.seed + seed * SEED_STRIDE)]
    return pairs[:count]


def chosen(settings: Settings) -> list[Fault]:
    """The faults of an audit, in the order of the catalogue."""
    names = _matching("fault", settings.faults, [fault.name for fault in FAULTS])
    checks = _matching("check", settings.checks, CHECKS)
    faults = [fault for fault in FAULTS if fault.name in names and fault.expected_check in checks]
    if settings.properties and not settings.faults:
        # Interpreted, the properties of a shipped kernel take minutes: those are put to them where they are named.
        faults = [fault for fault in faults if fault.planted_in != "triton"]
    if not faults:
        raise BadInput("no fault is left: the named faults are expected to be killed by other checks than those named")
    return sample(faults, settings.seed) if settings.quick else faults


def sample(faults: Sequence[Fault], seed: int) -> list[Fault]:
    """One fault of every theme in every operator, by the seed."""
    strata: dict[tuple[str, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        strata[fault.theme, fault.operator].append(fault)
    draw = random.Random(seed)
    picked = {draw.choice(stratum).name for stratum in strata.values()}
    return [fault for fault in faults if fault.name in picked]


def _matching(what: str, patterns: Sequence[str], known: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        matches = {name for name in known if fnmatchcase(name, pattern)}
        if not matches:
            raise unknown(what, pattern, known)
        found |= matches
    return found if patterns else set(known)
