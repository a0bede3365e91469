"""A run as one HTML page that needs nothing else: no network, no scripts of others, everything escaped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..verdict import Status, Verdict
from . import strips
from .plain import duration, line, number, plural, printable, share
from .png import data_uri, ramp
from .summary import Summary
from .table import _COLUMNS as COLUMNS

#: Failures of one implementation that are shown with map and worst elements; the others have one line.
DETAILED = 5
#: Characters of one message on the page; a kernel may raise with a megabyte.
LONGEST = 2000
#: Columns and pixels: an error map is shown as large as fits into this many, by whole pixels for each of its cells.
_MAP = 640
_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Attached:
    """What other commands found, as they write it to JSON, for the page of a run."""

    audit: Mapping[str, Any] | None = None
    """The document of ``attnoracle audit``, for the kill matrix."""
    diagnoses: Sequence[Mapping[str, Any]] = field(default=())
    """Records of ``attnoracle.diagnose``; each is shown with the failure of its case and implementation."""
    routes: Sequence[Mapping[str, Any]] = field(default=())
    """Records of ``attnoracle.route``."""


def page(
    verdicts: Sequence[Verdict],
    summary: Summary,
    environment: Mapping[str, Any],
    *,
    command: Sequence[str] = (),
    attached: Attached | None = None,
) -> str:
    """The page, as HTML."""
    import jinja2
    import markupsafe

    attached = attached or Attached()
    script = (_FOLDER / "page.js.j2").read_text(encoding="utf-8")
    folder = jinja2.FileSystemLoader(_FOLDER)
    engine = jinja2.Environment(
        loader=folder, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return engine.get_template("page.html.j2").render(
        sign={0: "All well", 1: "A fault was found"}.get(summary.exit_code, "Nothing could be judged"),
        code=summary.exit_code,
        total=plural(summary.total, "verdict"),
        seconds=duration(summary.seconds),
        counts=[(status, count) for status, count in summary.counts.items() if count],
        problems=[line(text) for text in (*summary.problems, *summary.notes)],
        machine=_machine(environment),
        command=line(" ".join(command)),
        columns=[name for _, name in _columns(verdicts)],
        matrix=_matrix(verdicts),
        plot=strips.plot(verdicts),
        decades=strips.DECADES,
        failures=_failures(verdicts, attached.diagnoses),
        routes=[_route(record) for record in attached.routes],
        verdicts=[_row(place, verdict) for place, verdict in enumerate(verdicts)],
        kills=_kills(attached.audit) if attached.audit is not None else None,
        ramp=ramp(),
        # No other script runs on the page, whatever a kernel is called.
        script=markupsafe.Markup(script),
        script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _machine(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    device = environment.get("device")
    found = [("device", device.get("name", "")) if isinstance(device, Mapping) else ("device", device)]
    found += [(name, environment.get(name)) for name in ("date", "attnoracle", "git", "python", "torch", "triton")]
    return [(name, line(str(value))) for name, value in found if value]


def _columns(verdicts: Sequence[Verdict]) -> list[tuple[Status, str]]:
    """Statuses that occur, with their headings."""
    seen = {verdict.status for verdict in verdicts}
    return [(status, name) for status, name in COLUMNS if status in seen]


def _matrix(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    rows: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.implementation].append(verdict)
    found = []
    for name in sorted(rows):
        counts = Counter(verdict.status for verdict in rows[name])
        ratios = [ratio for verdict in rows[name] if (ratio := verdict.worst_ratio) is not None]
        found.append(
            {
                "name": line(name),
                "cells": [(status, counts[status]) for status, _ in _columns(verdicts)],
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
        "ratio": _ratio(verdict.worst_ratio),
        "reason": reason if len(reason) <= 160 else f"{reason[:159]}…",
    }


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3g}" if math.isfinite(ratio) else "NaN or inf"


def _failures(verdicts: Sequence[Verdict], diagnoses: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    reasons = {(str(one.get("implementation")), str(one["case"]["id"])): one for one in diagnoses}
    shown: Counter[str] = Counter()
    found = []
    for place, verdict in enumerate(verdicts):
        if verdict.bad:
            shown[verdict.implementation] += 1
            why = reasons.get((verdict.implementation, verdict.case.id))
            detailed = shown[verdict.implementation] <= DETAILED or why is not None
            found.append(_failure(place, verdict, detailed=detailed) | {"why": _why(why) if why else None})
    return found


def _why(record: Mapping[str, Any]) -> dict[str, Any]:
    """A diagnosis in short: its conclusion, the ideas by what they explain, the stage."""
    stage = record.get("stage")
    return {
        "conclusion": _cut(str(record["conclusion"])),
        "hypotheses": [
            {
                "share": share(float(idea["explained"])),
                "words": _cut(str(idea["words"])),
                "stage": line(str(idea["stage"])),
                "fits": bool(idea["fits"]),
                "same": line(" ".join(str(other["words"]) for other in idea["same_here"][:3])),
            }
            for idea in record["hypotheses"]
        ],
        "stage": f"Stage: {line(str(stage['stage'] or 'undecided'))}; {_cut(str(stage['why']))}" if stage else "",
    }


def _route(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "batch": line(str(record["batch"])),
        "runs": line(str(record["runs"])),
        "skip": bool(record["skip"]),
        "steps": [_step(one) for one in record["steps"]],
        "hazards": [line(str(one)) for one in record["hazards"]],
    }


def _step(record: Mapping[str, Any]) -> dict[str, Any]:
    """One decision of a route with its reasons, and the steps inside it; a reason of a step within is not repeated."""
    steps = [_step(one) for one in record["steps"]]
    inner = {reason for step in steps for reason in step["reasons"]}
    reasons = [line(str(one)) for one in record["reasons"]]
    return {
        "name": line(str(record["name"])),
        "answer": line(str(record["answer"])),
        "reasons": [one for one in reasons if one not in inner],
        "steps": steps,
    }


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
        "map_size": _size(len(picture[0]), len(picture)) if picture else (0, 0),
        "repro": line(verdict.repro),
    }


def _size(width: int, height: int) -> tuple[int, int]:
    """Pixels on the page of a map of so many cells: small maps are not blown up to the whole of it."""
    each = max(1, min(24, _MAP // max(width, 1), _MAP // 2 // max(height, 1)))
    return width * each, height * each


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
