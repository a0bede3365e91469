"""A run as JUnit XML: a test suite for each implementation, a test case for each case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from ..verdict import Verdict
from .plain import line, printable

#: Status -> element, and the attribute of the suite that counts it. A WEAK verdict does not count as a pass.
_OUTCOMES = {
    "FAIL": ("failure", "failures"),
    "SUSPECT": ("failure", "failures"),
    "ERROR": ("error", "errors"),
    "UNSUPPORTED": ("skipped", "skipped"),
    "WEAK": ("skipped", "skipped"),
}


def junit(verdicts: Sequence[Verdict], environment: dict[str, Any]) -> str:
    """The XML document. Characters that XML 1.0 cannot hold are spelt as escapes."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[verdict.implementation].append(verdict)
    root = ElementTree.Element("testsuites", {"name": "attnoracle", **_counts(verdicts)})
    for name, group in groups.items():
        suite = ElementTree.SubElement(root, "testsuite", {"name": line(name), **_counts(group)})
        properties = ElementTree.SubElement(suite, "properties")
        for key, value in environment.items():
            ElementTree.SubElement(properties, "property", name=line(key), value=line(str(value)))
        for verdict in group:
            suite.append(_case(verdict))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _case(verdict: Verdict) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase",
        name=verdict.case.id,
        classname=line(verdict.implementation).replace("/", "."),
        time=f"{verdict.seconds:.3f}",
    )
    if verdict.status in _OUTCOMES:
        reason = line(verdict.reason) or verdict.status
        outcome = ElementTree.SubElement(
            element, _OUTCOMES[verdict.status][0], type=verdict.status, message=f"{verdict.status}: {reason}"
        )
        outcome.text = _told(verdict)
    return element


def _told(verdict: Verdict) -> str:
    lines = [verdict.reason] if verdict.reason else []
    for finding in verdict.findings:
        lines.append(f"{finding.check}: {finding.message}" + (f"; at {finding.where}" if finding.where else ""))
    for worst in verdict.worst:
        lines.append(
            f"{worst.output}{list(worst.index)}: observed {worst.observed:.9g}, expected {worst.expected:.9g}, "
            f"budget {worst.budget:.3g}, ratio {worst.ratio:.3g}"
        )
    return printable("\n".join([*lines, verdict.repro]))


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    counts = {"tests": len(verdicts), "failures": 0, "errors": 0, "skipped": 0}
    for verdict in verdicts:
        if verdict.status in _OUTCOMES:
            counts[_OUTCOMES[verdict.status][1]] += 1
    seconds = sum(verdict.seconds for verdict in verdicts)
    return {name: str(count) for name, count in counts.items()} | {"time": f"{seconds:.3f}"}
