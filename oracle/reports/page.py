"""A run as one HTML page that needs nothing else: no network, no scripts of others, everything escaped."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..verdict import Verdict
from .plain import duration, line, number, plural, printable
from .png import data_uri
from .summary import Summary, worst_ratio
from .table import _COLUMNS as COLUMNS

#: Failures of one implementation that are shown with map and worst elements; the others have one line.
DETAILED = 5
#: Characters of one message on the page; a kernel may raise with a megabyte.
LONGEST = 2000
_TEMPLATE = Path(__file__).with_name("page.html.j2")


def page(
    verdicts: Sequence[Verdict],
    summary: Summary,
    environment: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    audit: Mapping[str, Any] | None = None,
) -> str:
    """The page. ``audit`` is the document of ``attnoracle audit --json``, for the kill matrix."""
    import jinja2

    engine = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = engine.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    shown: Counter[str] = Counter()
    failures = []
    for place, verdict in enumerate(verdicts):
        if verdict.bad:
            shown[verdict.implementation] += 1
            failures.append(_failure(place, verdict, detailed=shown[verdict.implementation] <= DETAILED))
    return template.render(
        sign={0: "All well", 1: "A fault was found"}.get(summary.exit_code, "Nothing could be judged"),
        code=summary.exit_code,
        total=plural(summary.total, "verdict"),
        seconds=duration(summary.seconds),
        counts=[(status, count) for status, count in summary.counts.items() if count],
        problems=[line(text) for text in (*summary.problems, *summary.notes)],
        machine=_machine(environment),
        command=line(" ".join(command)),
        columns=[name for _, name in COLUMNS],
        matrix=_matrix(verdicts),
        failures=failures,
        verdicts=[_row(place, verdict) for place, verdict in enumerate(verdicts)],
        kills=_kills(audit) if audit is not None else None,
    )


def _machine(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    device = environment.get("device")
    found = [("device", device.get("name", "")) if isinstance(device, Mapping) else ("device", device)]
    found += [(name, environment.get(name)) for name in ("date", "attnoracle", "git", "python", "torch", "triton")]
    return [(name, line(str(value))) for name, value in found if value]


def _matrix(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    rows: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.implementation].append(verdict)
    found = []
    for name in sorted(rows):
        counts = Counter(verdict.status for verdict in rows[name])
        ratios = [ratio for verdict in rows[name] if (ratio := worst_ratio(verdict)) is not None]
        found.append(
            {
                "name": line(name),
                "cells": [(status, counts[status]) for status, _ in COLUMNS],
                "worst": _ratio(max(ratios, default=None)),
                "time": duration(sum(verdict.seconds for verdict in rows[name])),
            }
        )
    return found


def _row(place: int, verdict: Verdict) -> dict[str, Any]:
    reason = line(verdict.reason)
    return {
        "id": place,
        "status": verdict.status,
        "implementation": line(verdict.implementation),
        "case": verdict.case.id,
        "ratio": _ratio(worst_ratio(verdict)),
        "reason": reason if len(reason) <= 160 else f"{reason[:159]}…",
    }


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3g}" if math.isfinite(ratio) else "NaN or inf"


def _failure(place: int, verdict: Verdict, *, detailed: bool) -> dict[str, Any]:
    findings = [
        {
            "check": line(finding.check),
            "message": _cut(finding.message),
            "where": _cut(finding.where),
            "strength": "proved" if finding.proved else f"statistical, p = {finding.p_value or 0.0:.1e}",
        }
        for finding in verdict.findings
    ]
    picture = verdict.error_map if detailed else ()
    return {
        "id": place,
        "status": verdict.status,
        "implementation": line(verdict.implementation),
        "case": verdict.case.id,
        "reason": _cut(verdict.reason),
        "findings": findings,
        "worst": [
            {
                "place": f"{worst.output}[{', '.join(map(str, worst.index))}]",
                "numbers": [number(worst.observed), number(worst.expected), f"{worst.budget:.3g}", _ratio(worst.ratio)],
            }
            for worst in verdict.worst
        ]
        if detailed
        else [],
        "map": data_uri(picture) if picture else "",
        "map_size": (len(picture[0]), len(picture)) if picture else (0, 0),
        "repro": line(verdict.repro),
    }


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _kills(audit: Mapping[str, Any]) -> dict[str, Any]:
    """The kill matrix in short: how many faults each check killed, and how many no other did."""
    killed: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    faults = audit.get("faults", [])
    survivors = []
    for fault in faults:
        checks = list(fault.get("checks") or fault.get("killed_by") or ())
        killed.update(checks)
        if len(checks) == 1:
            alone.update(checks)
        if not checks:
            survivors.append(line(str(fault.get("name"))))
    most = max(killed.values(), default=1)
    rows = [(name, count, alone[name], round(100 * count / most)) for name, count in killed.most_common()]
    return {"faults": len(faults), "rows": rows, "survivors": survivors}
