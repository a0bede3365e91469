"""What a watch saw and what saved calls are worth, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from .plain import duration, line, plural

if TYPE_CHECKING:
    from ..engines.watch import Watch

_WIDTH = 78
_SPELT = 6


def seen(watch: Watch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary and lists of a watch that has ended."""
    violations = [
        {"rule": one.rule, "step": one.step, "layer": one.layer, "rows": one.rows, "said": str(one)}
        for one in watch.violations
    ]
    files = [{"file": str(path), "bytes": path.stat().st_size} for path in watch.saved]
    summary = {"steps": watch.steps, "violations": len(violations), "files": len(files), "failed": 0}
    return summary, {"violations": violations, "files": files}


def judged(paths: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every saved call against the reference."""
    from ..engines.captured import judge, load

    results = []
    for path in paths:
        one = load(path)
        judgement = judge(one)
        failed = bool(judgement.findings)
        results.append(
            {
                "file": str(path),
                "operator": one.operator,
                "origin": dict(one.origin),
                "status": "FAIL" if failed else "WEAK" if judgement.survivors else "PASS",
                "findings": [{"check": x.check, "message": x.message, "where": x.where} for x in judgement.findings],
                "survivors": list(judgement.survivors),
            }
        )
    count = sum(one["status"] == "FAIL" for one in results)
    return {"files": len(results), "failed": count, "violations": 0, "steps": len(results)}, {"results": results}


def exit_code(summary: dict[str, Any]) -> int:
    """1: a violation or a call that fails. 2: nothing ran."""
    if summary["violations"] or summary["failed"]:
        return 1
    return 0 if summary["steps"] else 2


def report(console: Console, summary: dict[str, Any], lists: dict[str, Any]) -> None:
    for one in lists.get("results", ()):
        style = {"PASS": "green", "FAIL": "bold red"}.get(one["status"], "yellow")
        console.print(Text.assemble((one["status"], style), f"  {line(one['file'])}"), soft_wrap=True)
        for finding in one["findings"][:_SPELT]:
            console.print(Padding(Text(line(f"{finding['check']}: {finding['message']}")), (0, 0, 0, 4)), width=_WIDTH)
    for violation in lists.get("violations", ())[:_SPELT]:
        console.print(Padding(Text(line(violation["said"])), (0, 0, 0, 2)), width=_WIDTH)
    if "results" in lists:
        text = Text(f"{plural(summary['files'], 'call')} judged, ")
        text.append(f"{summary['failed']} FAIL", "bold red" if summary["failed"] else "green")
    elif not summary["steps"]:
        text = Text("no layer ran: nothing was watched", "yellow")
    else:
        text = Text(f"{plural(summary['steps'], 'step')} watched, {plural(summary['files'], 'call')} saved, ")
        text.append(plural(summary["violations"], "violation"), "bold red" if summary["violations"] else "green")
    console.print(text.append(f", {duration(summary['seconds'])}"), soft_wrap=True)
