"""One fault, or one right kernel, put to the properties alone: none of the checks that know the answer takes part."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from ..case import Case
from ..faults import Fault, fault
from ..properties.cases import cases_for
from ..properties.property import Outcome
from ..properties.run import hold
from ..verdict import Finding, Verdict
from .good import good
from .trial import FAULT, candidates_first, wanted

#: Properties that kill a fault before it is left.
KILLS = 3


def judge(case: Case, name: str, device: str) -> Verdict:
    """As ``trial.judge``, by properties: FAIL with a finding for each that did not hold, named as its check.

    The measures are ``cases``, ``properties`` (those that were tried and said something) and ``kills``.
    """
    if name.startswith(FAULT):
        return try_fault(fault(name.removeprefix(FAULT)), case.seed, device)
    started = time.perf_counter()
    return _verdict(case, name, list(hold(case, good(name), device)), 1, started, device)


def try_fault(faulty: Fault, seed: int, device: str) -> Verdict:
    """Put a fault to the properties on the cases that suit it, until three have killed it."""
    started, implementation = time.perf_counter(), faulty.implementation()
    said: list[Outcome] = []
    tried: list[Case] = []
    for case in fault_cases(faulty, seed, device):
        tried.append(case)
        for outcome in hold(case, implementation, device):
            said += [outcome] if outcome.status != "not applicable" else []
            if len({one.number for one in said if one.status == "failed"}) >= KILLS:
                break
        if any(one.status == "failed" for one in said):
            break
    first = next((one for one in said if one.status == "failed"), None)
    case = Case.parse(first.case) if first else next(iter(tried), candidates_first(faulty, seed))
    return _verdict(case, FAULT + faulty.name, said, len(tried), started, device)


def fault_cases(faulty: Fault, seed: int, device: str) -> Iterator[Case]:
    """The small cases that a fault takes, those with what it names first; then its own, where that has more of it."""
    cases = sorted(cases_for(faulty.implementation(), device, seed), key=lambda case: -wanted(faulty, case))
    best = max((wanted(faulty, case) for case in cases), default=-1)
    own = candidates_first(faulty, seed)
    # A cache past 2**31 elements is of addresses: a property would copy it.
    if "hugerows" not in own.options and wanted(faulty, own) > best:
        yield own
    # Interpreted, a shipped kernel takes a minute for all properties of one case.
    yield from cases[:1] if faulty.planted_in == "triton" else cases


def _verdict(case: Case, name: str, said: list[Outcome], cases: int, started: float, device: str) -> Verdict:
    failed = [one for one in said if one.status == "failed"]
    told = {one.name: one for one in reversed(failed)}
    findings = tuple(Finding(one.name, one.reason, not math.isfinite(one.ratio)) for one in reversed(told.values()))
    counted = sum(one.status != "not applicable" for one in said)
    return Verdict(
        case=case,
        implementation=name,
        status="FAIL" if failed else "PASS" if counted else "UNSUPPORTED",
        reason=findings[0].message if findings else "",
        findings=findings,
        measures={"cases": float(cases), "properties": float(counted), "kills": float(len(told))},
        seconds=time.perf_counter() - started,
        device=device,
    )
