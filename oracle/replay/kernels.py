"""Plays an incident of one operator: the faulty kernel and the cured one through the loop that judges all kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...optimized.implementation import Implementation
from ..case import Case
from ..check import check
from ..errors import BadInput
from ..faults import fault
from ..faults.simulated import KERNELS, SIMULATED
from ..guests.known import find
from ..verdict import Verdict
from .expected import Outcome
from .operator_incident import KernelCase, KernelVariant, OperatorIncident


def play_cases(incident: OperatorIncident, variants: Sequence[KernelVariant]) -> Iterator[Outcome]:
    """One outcome a variant and case. Raises BadInput for a case that cannot run in a variant."""
    for variant in variants:
        for one in incident.cases:
            case = Case.parse(one.case)
            verdict = check(case, _kernel(variant, case.operator))
            yield _outcome(variant, one, verdict)


def _kernel(variant: KernelVariant, operator: str) -> Implementation:
    if variant.fault:
        return fault(variant.fault).implementation(operator)
    if variant.implementation:
        return find(variant.implementation)
    kernel = KERNELS[operator]
    return Implementation(f"{operator}/simulated", SIMULATED, lambda facts: None, lambda: kernel)


def _outcome(variant: KernelVariant, one: KernelCase, verdict: Verdict) -> Outcome:
    if verdict.status not in ("PASS", "FAIL"):
        raise BadInput(
            f"case {one.name!r} of variant {variant.name!r}: expected PASS or FAIL, got {verdict.status}: "
            f"{verdict.reason}; an incident needs cases that can be judged"
        )
    fails = variant.faulty and one.fails
    said: dict[str, str] = {}
    for finding in verdict.findings:
        said.setdefault(finding.check, f"{finding.check}: {finding.message}")
    ratios = [worst.ratio for worst in verdict.worst]
    return Outcome(
        variant=variant.name,
        name=one.name,
        companion=not one.fails,
        status="FAIL" if verdict.status == "FAIL" else "PASS",
        detected_by=tuple(said),
        wanted="FAIL" if fails else "PASS",
        wanted_by=one.detected_by if fails else (),
        said=tuple(said.values()),
        worst=max(ratios, default=0.0),
        facts={"case": one.case, "implementation": verdict.implementation},
    )
