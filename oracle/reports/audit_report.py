"""An audit for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..audit.result import KILLERS, Audit, Trial
from . import json_report
from .plain import duration, line, plural

#: Headings of at most four letters: the matrix has to fit 80 columns.
_SHORT = {
    "structure": "strc", "memory": "mem", "rerun": "rer", "element": "elem", "row": "row", "query": "qry",
    "head": "head", "column": "col", "global": "glob", "bias": "bias", "lse": "lse", "topk": "topk",
    "exact": "exac", "sequence": "seq", "error": "err",
}  # fmt: skip


def document(command: Sequence[str], environment: dict[str, Any], audit: Audit) -> dict[str, Any]:
    """``attnoracle.audit``, version 1."""
    return json_report.document(
        "audit",
        command,
        environment,
        audit.summary(),
        faults=[*(fault_record(trial) for trial in audit.trials), *(one.record() for one in audit.played)],
        good=[good_record(audit, name) for name in dict.fromkeys(run.name for run in audit.runs)],
    )


def fault_record(trial: Trial) -> dict[str, Any]:
    fault, outcome = trial.fault, trial.outcome
    return {
        "name": fault.name,
        "operator": fault.operator,
        "theme": fault.theme,
        "planted_in": fault.planted_in,
        "description": fault.description,
        "source": fault.source,
        "expected_check": fault.expected_check,
        "status": "killed" if trial.killed else "survived" if trial.survived else "not run",
        "killed": trial.killed,
        "killers": outcome.checks,
        "sole_killer": trial.sole_killer,
        "case": outcome.case,
        "cases": outcome.cases,
        "reason": outcome.reason,
        "escapes": fault.escapes,
        "seconds": outcome.seconds,
    }


def good_record(audit: Audit, name: str) -> dict[str, Any]:
    runs = [run for run in audit.runs if run.name == name]
    rejected = [run for run in runs if run.bad]
    return {
        "implementation": name,
        "runs": len(runs),
        "rejected": len(rejected),
        "weak": sum(run.status == "WEAK" for run in runs),
        "rejections": [{"case": run.case, "status": run.status, "reason": run.reason} for run in rejected],
    }


def report(console: Console, audit: Audit) -> None:
    """The kill matrix, the other verdicts, then what went wrong, and the summary last."""
    summary = audit.summary()
    if audit.trials:
        console.print(matrix(audit))
        never = summary["checks_never_needed"]
        console.print(f"\nnever the only killer here: {', '.join(never) or 'none'}")
        console.print()
        console.print(_verdicts(audit))
    _print_not_run(console, audit)
    for trial in audit.survivors:
        told = Text.assemble("\n", ("SURVIVED", "bold red"), f"  {trial.fault.name}  ({trial.fault.operator})")
        console.print(told)
        source = f" {trial.fault.source}" if trial.fault.source else ""
        found = f"{line(trial.fault.description)}{source} Tried {plural(trial.outcome.cases, 'case')}."
        console.print(Padding(Text(found), (0, 0, 0, 2), expand=False))
    for one in audit.played:
        if not one.killed:
            told = Text.assemble("\n", ("SURVIVED", "bold red"), f"  {one.name}  ({one.planted_in})  {one.where}")
            console.print(told)
    for run in audit.rejections:
        console.print(Text.assemble("\n", ("FALSE ALARM", "bold red"), f"  {run.name}: {line(run.reason)}"))
        console.print(f"  {run.case}", soft_wrap=True)
    console.print(_closing(summary))


def matrix(audit: Audit) -> Table:
    """Theme x check: how many faults each check fired on; the last row counts those that it alone fired on."""
    kills, sole = audit.kills(), audit.sole()
    shown = [check for check in KILLERS if kills[check]]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("theme", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    for check in shown:
        table.add_column(_SHORT[check], justify="right", no_wrap=True)
    for theme in dict.fromkeys(trial.fault.theme for trial in audit.trials):
        trials = [trial for trial in audit.trials if trial.fault.theme == theme]
        table.add_row(theme, str(len(trials)), *_cells(Counter(c for t in trials for c in t.outcome.checks), shown))
    table.add_section()
    table.add_row(Text("killed by", "bold"), str(len(audit.trials)), *_cells(kills, shown))
    table.add_row(Text("by it alone", "bold"), str(sum(sole.values())), *_cells(sole, shown))
    return table


def _cells(counts: Counter[str], shown: list[str]) -> list[Text]:
    return [Text(str(counts[check])) if counts[check] else Text("-", "dim") for check in shown]


def _verdicts(audit: Audit) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("faults missed", justify="right", no_wrap=True)
    table.add_row("attnoracle", str(len(audit.survivors)))
    for verdict, missed in audit.missed().items():
        table.add_row(verdict, str(missed))
    return table


def _print_not_run(console: Console, audit: Audit) -> None:
    if audit.not_run:
        themes = Counter(trial.fault.planted_in for trial in audit.not_run)
        told = ", ".join(f"{count} planted in {place}" for place, count in themes.items())
        console.print(Text(f"\nnot run on this machine: {told}", "yellow"))


def _closing(summary: dict[str, Any]) -> Text:
    text = Text("\n")
    ran = summary["faults"] - summary["not_run"]
    if ran:
        text.append(f"{summary['killed']} of {plural(ran, 'fault')} killed")
    for kind, counts in summary.get("state_faults", {}).items():
        text.append(f"{', ' if ran else ''}{counts['killed']} of {counts['faults']} planted in a {kind}")
    if summary["good_runs"]:
        bound = f"chance below {summary['false_alarm_upper_bound']:.2g} at {summary['confidence']:.0%}"
        runs, alarms = plural(summary["good_runs"], "good run"), plural(summary["false_alarms"], "false alarm")
        text.append(f"{'; ' if ran else ''}{runs}, {alarms} ({bound})")
    return text.append(f"; {duration(summary['seconds'])}")
