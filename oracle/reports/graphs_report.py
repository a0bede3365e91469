"""A run of graphs for people: sequences by subject and mode, implementations, the incident, faults, what failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..graphs.backend import Capturing
from ..graphs.matrix import VARIANTS, Result
from ..graphs.run import StepSeen
from ..graphs.violation import CHECKS, INVARIANTS
from .plain import duration, line, plural

_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
_SPELT = 4


def report(console: Console, results: Sequence[Result], device: str, seconds: float) -> None:
    """Print a run; 80 columns hold every line of the tables."""
    console.print(Text(Capturing["cuda" if device == "cuda" else "emulated"], "dim"), soft_wrap=True)
    _sequences(console, [one for one in results if one.job.kind == "sequence"])
    _singles(console, [one for one in results if one.job.kind == "single"])
    _incident(console, [one for one in results if one.job.kind == "incident"])
    _faults(console, [one for one in results if one.job.kind == "fault"])
    for one in results:
        if not one.met and one.runs and one.job.kind != "fault":
            _failed(console, one)
    console.print(_closing(results, seconds), soft_wrap=True)


def _sequences(console: Console, results: Sequence[Result]) -> None:
    if not results:
        return
    cells: dict[tuple[str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        cells[one.job.subject, one.job.name][one.job.line.split()[0].rstrip(":")].append(one)
    table = _table("subject", "sequences", "NONE", "PIECEWISE", "FULL", "FULL+PIECEWISE")
    last = ""
    for (subject, theme), row in sorted(cells.items(), key=lambda item: item[0][0]):
        table.add_row("" if subject == last else subject, theme, *(_cell(row.get(mode, [])) for mode in _MODES))
        last = subject
    console.print()
    console.print(table)


def _cell(results: Sequence[Result]) -> Text:
    if not results:
        return Text("-", "dim")
    bad = sum(not one.met for one in results)
    return Text(f"{bad} of {len(results)} FAIL", "bold red") if bad else Text(f"{len(results)} clean", "green")


def _singles(console: Console, results: Sequence[Result]) -> None:
    if not results:
        return
    table = _table("implementation", "captured, then", "")
    for one in results:
        told = plural(max(0, len(one.steps) - 1), "other case")
        status = Text("clean", "green") if one.met else Text("FAIL", "bold red")
        table.add_row(one.job.name, told if one.runs else "-", status if one.runs else Text("cannot run here", "dim"))
    console.print()
    console.print(table)


def _incident(console: Console, results: Sequence[Result]) -> None:
    if not results:
        return
    console.print(Text(f"\nvllm#52512 under graphs: {results[0].job.line}", "bold"), soft_wrap=True)
    table = _table("variant", "what it does", "")
    for one in results:
        bad = sorted({step.number for step in one.steps if step.violations})
        steps = "step" if len(bad) == 1 else "steps"
        failed = Text(f"FAIL at {steps} {', '.join(map(str, bad))}", "bold red")
        table.add_row(one.job.name, VARIANTS[one.job.name].what, failed if bad else Text("PASS", "green"))
    console.print(table)


def _faults(console: Console, results: Sequence[Result]) -> None:
    if not results:
        return
    table = _table("planted fault", "must be seen by", "", "also seen by")
    for one in results:
        others = sum(check != one.job.fault.check for check in one.seen_by)
        status = Text("caught", "green") if one.met else Text("MISSED", "bold red")
        table.add_row(
            one.job.name, one.job.fault.check, status, Text(plural(others, "check") if others else "-", "dim")
        )
    console.print()
    console.print(table)
    for one in results if len(results) <= _SPELT else [one for one in results if not one.met]:
        console.print(Text(f"\n{one.job.name}: {one.job.fault.what}", "bold"), soft_wrap=True)
        console.print(Padding(Text(f"{one.job.line}\n{line(one.telling)}"), (0, 0, 0, 2), expand=False))


def _failed(console: Console, one: Result) -> None:
    console.print(Text(f"\n{one.job.subject}  {one.job.line}", "bold"), soft_wrap=True)
    for step in one.steps:
        for violation in step.violations[:_SPELT]:
            console.print(Padding(Text(line(str(violation))), (0, 0, 0, 2), expand=False))
    if one.error:
        console.print(Padding(Text(line(one.error)), (0, 0, 0, 2), expand=False))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    return table


def _closing(results: Sequence[Result], seconds: float) -> Text:
    summary = summary_record(results, seconds)
    text = Text(f"\n{plural(summary['sequences'], 'sequence')} ({plural(summary['steps'], 'step')})")
    text.append(", all clean" if summary["sequences"] == summary["clean"] else f", {summary['clean']} clean")
    if summary["faults"]:
        text.append(f"; {summary['caught']} of {plural(summary['faults'], 'fault')} caught by name")
    text.append(f"; {duration(seconds)}")
    text.stylize("green" if summary["as_expected"] else "bold red")
    return text


def step_records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The entries of ``steps[]``: one a judged step of a sequence, an implementation or the incident."""
    return [
        _step(one, step)
        for one in results
        if one.job.kind != "fault"
        for step in one.steps
    ]  # fmt: skip


def _step(one: Result, step: StepSeen) -> dict[str, Any]:
    captured = one.steps[0] if one.steps and one.steps[0].number == 0 else None
    return {
        "sequence": one.job.line or one.job.name,
        "theme": one.job.name,
        "kind": one.job.kind,
        "mode": step.mode,
        "subject": one.job.subject,
        "captured": None if captured is None else captured.step,
        "replayed": step.step if step.number else None,
        "number": step.number,
        "size": step.size,
        "tokens": step.tokens,
        "routes": list(step.routes),
        "status": "FAIL" if step.violations else "PASS",
        "violations": [
            {"check": found.check, "step": found.step, "frozen": found.frozen, "now": found.now}
            for found in step.violations
        ],
    }


def fault_records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The entries of ``faults[]``."""
    return [
        {
            "name": one.job.name,
            "what": one.job.fault.what,
            "source": one.job.fault.source,
            "expected_check": one.job.fault.check,
            "sequence": one.job.line,
            "caught": one.met,
            "seen_by": list(one.seen_by),
            "told": one.telling,
            "error": one.error,
        }
        for one in results
        if one.job.kind == "fault"
    ]


def summary_record(results: Sequence[Result], seconds: float) -> dict[str, Any]:
    played = [one for one in results if one.job.kind in ("sequence", "single") and one.runs]
    planted = [one for one in results if one.job.kind == "fault"]
    missed = [f"{one.job.subject} {one.job.line or one.job.name}" for one in results if one.runs and not one.met]
    missed += [one.job.name for one in results if not one.runs and one.job.kind != "single"]
    return {
        "sequences": len(played),
        "steps": sum(len(one.steps) for one in played),
        "clean": sum(one.met for one in played),
        "faults": len(planted),
        "caught": sum(one.met for one in planted),
        "as_expected": not missed,
        "unexpected": missed,
        "checks": dict(CHECKS),
        "invariants": list(INVARIANTS),
        "seconds": round(seconds, 3),
    }
