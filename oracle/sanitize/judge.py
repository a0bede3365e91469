"""From the reports of the tools to one verdict on a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..case import Case
from ..verdict import Finding, Verdict
from .parse import TOOLS, Report

#: Said of a race that the tool would report of accesses in order as well.
_UNSEEN = "; racecheck does not follow the mbarriers that this kernel waits at, so it may be none"


def judged(case: Case, implementation: str, report: Callable[[str], Report], tools: Sequence[str] = TOOLS) -> Verdict:
    """FAIL with a finding for each record of each tool; ERROR where a tool did not finish; warnings are counted.

    ``report`` runs one tool. A tool whose summary counts errors that it shows no record of is a FAIL as well. WEAK
    where all that was found are races in kernels whose barriers racecheck does not follow.
    """
    started = time.perf_counter()
    findings: list[Finding] = []
    trouble: list[str] = []
    warnings = 0
    for tool in tools:
        found = report(tool)
        findings += _findings(found)
        warnings += found.warnings
        if not found.finished and not any(finding.proved for finding in findings):
            trouble.append(f"{tool}: {found.trouble or 'no summary line'}")
    findings.sort(key=lambda finding: not finding.proved)
    proved = bool(findings) and findings[0].proved
    reason = "; ".join(trouble) if trouble and not proved else findings[0].message if findings else ""
    return Verdict(
        case=case,
        implementation=implementation,
        status="FAIL" if proved else "ERROR" if trouble else "WEAK" if findings else "PASS",
        reason=reason,
        findings=tuple(findings),
        measures={"warnings": float(warnings), "tools": float(len(tools))},
        seconds=time.perf_counter() - started,
        device="cuda",
    )


def _findings(report: Report) -> Iterator[Finding]:
    errors = [hazard for hazard in report.hazards if hazard.severity == "error"]
    seen: set[tuple[str, str, str]] = set()
    proved = False
    for hazard in errors:
        key = (hazard.kind, hazard.kernel, hazard.place)
        if key not in seen:  # one line of a kernel is one finding, however many threads stand there
            seen.add(key)
            unseen = report.tool == "racecheck" and hazard.kernel in report.meeting
            proved = proved or not unseen
            told = f"{report.tool}: {hazard.told()}{_UNSEEN if unseen else ''}"
            yield Finding(report.tool, told, not unseen, where=hazard.place)
    if not proved and (report.errors or 0) > len(errors):
        shown = len(errors) or "none"
        yield Finding(report.tool, f"{report.tool}: {report.errors} errors by its summary, {shown} shown", True)
