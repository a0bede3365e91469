"""From the reports of the tools to one verdict on a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..case import Case
from ..verdict import Finding, Verdict
from .parse import TOOLS, Report


def judged(case: Case, implementation: str, report: Callable[[str], Report], tools: Sequence[str] = TOOLS) -> Verdict:
    """FAIL with a finding for each record of each tool; ERROR where a tool did not finish; warnings are counted.

    ``report`` runs one tool. A tool whose summary counts errors that it shows no record of is a FAIL as well.
    """
    started = time.perf_counter()
    findings: list[Finding] = []
    trouble: list[str] = []
    warnings = 0
    for tool in tools:
        found = report(tool)
        findings += _findings(found)
        warnings += found.warnings
        if not found.finished and not findings:
            trouble.append(f"{tool}: {found.trouble or 'no summary line'}")
    reason = findings[0].message if findings else "; ".join(trouble)
    return Verdict(
        case=case,
        implementation=implementation,
        status="FAIL" if findings else "ERROR" if trouble else "PASS",
        reason=reason,
        findings=tuple(findings),
        measures={"warnings": float(warnings), "tools": float(len(tools))},
        seconds=time.perf_counter() - started,
        device="cuda",
    )


def _findings(report: Report) -> Iterator[Finding]:
    errors = [hazard for hazard in report.hazards if hazard.severity == "error"]
    seen: set[tuple[str, str, str]] = set()
    for hazard in errors:
        key = (hazard.kind, hazard.kernel, hazard.place)
        if key not in seen:  # one line of a kernel is one finding, however many threads stand there
            seen.add(key)
            yield Finding(report.tool, f"{report.tool}: {hazard.told()}", True, where=hazard.place)
    if report.errors and not errors:
        yield Finding(report.tool, f"{report.tool}: {report.errors} errors by its summary, none shown", True)
