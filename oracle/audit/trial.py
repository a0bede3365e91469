"""One fault, or one right kernel, put to the checks: what a worker does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ..case import Case
from ..check import check
from ..faults import Fault, fault
from ..faults.escapes import cases_for
from ..suites import suite
from ..suites.reach import is_reach
from ..verdict import Finding, Verdict
from .good import SEED_STRIDE, good

#: Marks the name of a fault among those of implementations.
FAULT = "fault:"
#: Cases that kill a fault before it is left, and most cases tried after the first of them.
KILLS, FURTHER = 3, 6
#: Seeds of the quick suite that a fault has to survive to count as a survivor.
ROUNDS = 3
#: Cases on which a fault that survived is called in sequence.
SEQUENCES = 5


def judge(case: Case, name: str, device: str) -> Verdict:
    """The verdict on a right kernel by its name, or on ``fault:NAME`` over the cases that suit it.

    That of a fault: FAIL with one finding for each check that fired, the first killing case as its case, and the
    measures ``cases`` and ``kills``; PASS if it survived; UNSUPPORTED if it can run on none of the cases. The seed of
    the cases is that of ``case``.
    """
    if name.startswith(FAULT):
        return try_fault(fault(name.removeprefix(FAULT)), case.seed, device)
    return check(case, good(name), device=device, sequence=True)


def try_fault(faulty: Fault, seed: int, device: str) -> Verdict:
    """See ``judge``."""
    started, implementation = time.perf_counter(), faulty.implementation()
    in_sequence = "sequence" in faulty.options
    tried: list[Case] = []
    bad: list[Verdict] = []
    for case in candidates(faulty, seed):
        named = bool(faulty.convention)  # looking for a convention costs more than the verdict
        verdict = check(case, implementation, device=device, sequence=in_sequence, explain=named)
        if verdict.status == "UNSUPPORTED":
            continue
        tried.append(case)
        bad += [verdict] if verdict.bad else []
        if len(bad) >= KILLS or (bad and len(tried) > tried.index(bad[0].case) + FURTHER):
            break
    if not bad and not in_sequence:
        later = (check(case, implementation, device=device, sequence=True, explain=False) for case in tried[:SEQUENCES])
        bad = [verdict for verdict in later if verdict.bad]
    first = bad[0] if bad else None
    return Verdict(
        case=first.case if first else next(iter(tried), candidates_first(faulty, seed)),
        implementation=f"{FAULT}{faulty.name}",
        status="FAIL" if bad else "PASS" if tried else "UNSUPPORTED",
        reason=first.reason if first else "",
        findings=tuple(_one_each(bad)),
        measures={"cases": float(len(tried)), "kills": float(len(bad))},
        seconds=time.perf_counter() - started,
        device=device,
    )


def _one_each(bad: list[Verdict]) -> Iterator[Finding]:
    """The first finding of every check that fired; what raised counts as the check ``error``."""
    seen: set[str] = set()
    for verdict in bad:
        raised = [Finding("error", verdict.reason, True)] if verdict.status == "ERROR" else []
        for finding in (*verdict.findings, *raised):
            if finding.check not in seen:
                seen.add(finding.check)
                yield finding


def candidates_first(faulty: Fault, seed: int) -> Case:
    """The case that a fault is tried on first."""
    return next(candidates(faulty, seed))


def candidates(faulty: Fault, seed: int) -> Iterator[Case]:
    """Cases that suit a fault, likeliest first: those of the quick suite that have what it names, then the others.

    A fault that names what no case of the quick suite has is tried on those of the full suite that have more of it,
    and what those lack as well on a case made for it.
    """
    cases = [case for case in suite("quick", seed) if case.operator == faulty.operator]
    best = max(wanted(faulty, case) for case in cases)
    if best < len(faulty.options):
        cases += [case for case in _rest(seed) if case.operator == faulty.operator and wanted(faulty, case) > best]
        best = max(wanted(faulty, case) for case in cases)
    made = [replace(_with_hugerows(faulty, case), seed=seed) for case in cases_for(faulty)]
    made = [case for case in made if wanted(faulty, case) > best]
    yield from sorted([*cases, *made], key=lambda case: -wanted(faulty, case))
    for further in range(1, ROUNDS):
        yield from (c for c in suite("quick", seed + further * SEED_STRIDE) if c.operator == faulty.operator)


@cache
def _rest(seed: int) -> tuple[Case, ...]:
    """The cases of the full suite that the quick one has not."""
    return suite("full", seed)[len(suite("quick", seed)) :]


def _with_hugerows(faulty: Fault, case: Case) -> Case:
    if "hugerows" not in faulty.options:
        return case
    return replace(case, options=tuple(sorted({*case.options, "hugerows"})))


def wanted(faulty: Fault, case: Case) -> int:
    """How many of the things that a fault names a case has."""
    return sum(_has(case, option) for option in faulty.options)


def _has(case: Case, option: str) -> bool:
    field, _, value = option.partition("=")
    pairs = list(zip(case.q_lens, case.k_lens, strict=True))
    if field == "reach":
        return is_reach(case, value)
    if field == "requests":
        return len(case.q_lens) >= int(value)
    if field in ("dtype", "kind", "layout", "heads"):
        return str(getattr(case, field)) == value
    if field == "k":
        offset = {"0": (0, 0), "topk": (case.topk, 0), "topk+1": (case.topk, 1)}[value]
        return any(k == sum(offset) for _, k in pairs)
    if option in ("k<q", "k>q"):
        return any(k < q if option == "k<q" else k > q for q, k in pairs)
    return option in case.options
