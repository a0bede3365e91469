"""What a person reads of a shrunk case, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..case import Case
from ..cause.signature import signature
from ..environment import environment
from ..records.verdict_json import case_record, verdict_record
from ..shrink import Shrunk
from .json_report import document as envelope
from .json_report import dumps
from .plain import duration, line, plural


def document(command: Sequence[str], found: Shrunk) -> str:
    """``attnoracle.shrink``, version 1."""
    summary = {
        "original": found.original.id,
        "case": case_record(found.case),
        "signature": found.signature.as_list(),
        "runs": found.runs,
        "seconds": round(found.seconds, 3),
        "failure_rate": found.rate,
        "confidence": found.confidence,
        "quiet_runs": found.patience,
        "fixture": found.fixture(),
    }
    steps = [{"axis": step.axis, "case": step.case.id} for step in found.steps]
    slips = [verdict_record(verdict) for verdict in found.slips]
    return dumps(
        envelope(
            "shrink",
            command,
            environment(),
            summary,
            steps=steps,
            slips=slips,
            verdicts=[verdict_record(found.verdict)],
        )
    )


def report(console: Console, found: Shrunk, *, fixture: bool, sequence: bool = False) -> None:
    """The way down, the case at its end, the failures met beside it, and what to do with them.

    ``fixture``: show the lines for ``fixtures/cases``, where cases of what this package ships are kept.
    """
    console.print(Text.assemble(("failure  ", "dim"), line(str(found.signature))), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("axis", no_wrap=True)
    for heading in ("requests", "heads", "queries", "keys", "slots"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("values", overflow="fold")
    table.add_row("from", *_sizes(found.original))
    last = {step.axis: step.case for step in found.steps}
    for axis, case in last.items():
        table.add_row(axis, *_sizes(case))
    console.print(table)
    console.print(Text.assemble(("case     ", "dim"), (found.case.id, "bold")), soft_wrap=True)
    told = f"{plural(found.runs, 'run')} in {duration(found.seconds)}"
    if found.rate < 1.0:
        told += (
            f"; it fails on {found.rate:.0%} of runs, so a case was given up after {found.patience} quiet ones "
            f"({found.confidence:.0%} confidence for one that fails half as often)"
        )
    console.print(Text(told, "dim"))
    for slip in found.slips:
        console.print(Text.assemble(("another failure: ", "yellow"), line(str(signature(slip)))), soft_wrap=True)
        console.print(Text(f"  {slip.case.id}"), soft_wrap=True)
    if fixture:
        console.print("for fixtures/cases:")
        console.print(Text(found.fixture().rstrip()), soft_wrap=True)
    following = f"attnoracle diagnose '{found.case.id}' {found.verdict.arguments}"
    console.print(Text.assemble(("next     ", "dim"), following), soft_wrap=True)


def _sizes(case: Case) -> list[str]:
    kind = f"{case.kind}, {case.dtype}, {case.layout}" + ("" if case.geometry != "tiny" else ", tiny dims")
    sizes = (len(case.q_lens), case.heads, case.queries, case.keys, case.topk)
    return [*(str(size) if size else "-" for size in sizes), kind]
