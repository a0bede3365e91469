"""An audit of the properties for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..audit.properties_file import lost, summary
from ..audit.result import Audit
from . import json_report
from .audit_report import fault_record, good_record
from .plain import duration, line, plural


def document(command: Sequence[str], environment: dict[str, Any], audit: Audit) -> dict[str, Any]:
    """``attnoracle.property-audit``, version 1: the lists of ``attnoracle.audit``, killers being properties."""
    names = dict.fromkeys(run.name for run in audit.runs)
    return json_report.document(
        "property-audit",
        command,
        environment,
        summary(audit),
        faults=[fault_record(trial) for trial in audit.trials],
        good=[good_record(audit, name) for name in names],
    )


def report(console: Console, audit: Audit) -> None:
    """Kills by operator, then survivors by theme, what went wrong, and the summary last."""
    figures = summary(audit)
    if audit.trials:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading, side in (("operator", "left"), ("faults", "right"), ("killed", "right"), ("share", "right")):
            table.add_column(heading, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for name, counts in figures["by_operator"].items():
            share = f"{counts['killed'] / counts['faults']:.0%}" if counts["faults"] else "-"
            table.add_row(name, str(counts["faults"]), str(counts["killed"]), share)
        console.print(table)
    if audit.survivors:
        names = ", ".join(trial.fault.name for trial in audit.survivors)
        console.print(Text(f"\nnot killed by properties: {names}", "dim"))
    for name in lost(audit):
        console.print(Text.assemble("\n", ("SURVIVED", "bold red"), f"  {name}: killed in the committed file"))
    for run in audit.rejections:
        console.print(Text.assemble("\n", ("FALSE ALARM", "bold red"), f"  {run.name}: {line(run.reason)}"))
        console.print(f"  {run.case}", soft_wrap=True)
    ran = figures["faults"] - figures["not_run"]
    told = [f"{figures['killed']} of {plural(ran, 'fault')} killed by properties alone"] if ran else []
    if figures["good_runs"]:
        bound = f"chance below {figures['false_alarm_upper_bound']:.2g} at {figures['confidence']:.0%}"
        alarms = plural(figures["false_alarms"], "false alarm")
        told.append(f"{plural(figures['good_runs'], 'good run')}, {alarms} ({bound})")
    console.print(Text("\n" + "; ".join([*told, duration(figures["seconds"])])))
