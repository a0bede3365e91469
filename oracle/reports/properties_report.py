"""Properties of implementations, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..properties.property import Outcome
from ..properties.table import PROPERTIES
from . import json_report
from .plain import duration, line, plural

#: Properties that get a column of their own: what engines ask of a kernel by name.
NAMED = {
    "batch-invariance": "alone = batch",
    "repeat": "repeat",
    "two-callers": "two callers",
    "two-streams": "streams",
}


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """1 with a property that failed, 2 where none could be looked at, else 0."""
    counts = Counter(one.status for one in outcomes)
    return 1 if counts["failed"] else 0 if counts["held"] else 2


def verdict_lines(outcomes: Sequence[Outcome], invariant: Sequence[str]) -> dict[str, str]:
    """What is asked of a kernel by name, each in a line: how many implementations keep it, and how strictly."""
    lines = {}
    for label in NAMED:
        seen: Counter[str] = Counter()
        for name in dict.fromkeys(one.implementation for one in outcomes):
            own = [one for one in outcomes if one.implementation == name and one.name == label]
            status = _worst(own, own[0].number)
            if status == "held" and label == "batch-invariance":
                status = "bitwise, as declared" if name in invariant else "within budget, nothing declared"
            seen[{"failed": "FAILED"}.get(status, status)] += 1
        lines[label] = "; ".join(f"{count} {status}" for status, count in seen.items())
    return lines


def summary(outcomes: Sequence[Outcome], seconds: float, invariant: Sequence[str] = ()) -> dict[str, Any]:
    counts = Counter(one.status for one in outcomes)
    return {
        "implementations": len({one.implementation for one in outcomes}),
        "held": counts["held"],
        "failed": counts["failed"],
        "not_applicable": counts["not applicable"],
        "lines": verdict_lines(outcomes, invariant),
        "seconds": round(seconds, 1),
        "exit_code": exit_code(outcomes),
    }


def document(
    command: Sequence[str],
    environment: dict[str, Any],
    outcomes: Sequence[Outcome],
    seconds: float,
    invariant: Sequence[str] = (),
) -> dict[str, Any]:
    """``attnoracle.properties``, version 1: an entry for every property, implementation and case."""
    statements = {one.number: one.statement for one in PROPERTIES}
    records = [
        {
            "number": one.number,
            "name": one.name,
            "statement": statements[one.number],
            "implementation": one.implementation,
            "case": one.case,
            "status": one.status,
            "reason": one.reason,
            "ratio": one.ratio,
            "comparisons": one.claims,
        }
        for one in outcomes
    ]
    return json_report.document(
        "properties", command, environment, summary(outcomes, seconds, invariant), properties=records
    )


def report(
    console: Console,
    outcomes: Sequence[Outcome],
    unsupported: Sequence[tuple[str, str]],
    seconds: float,
    *,
    invariant: Sequence[str] = (),
    quiet: bool = False,
) -> None:
    """A row for each implementation, then every property that failed, then what could not be run and the count."""
    if outcomes and not quiet:
        console.print(matrix(outcomes, invariant))
    for one in outcomes:
        if one.status == "failed":
            _print_failure(console, one)
    if outcomes:
        console.print()
        for label, told in verdict_lines(outcomes, invariant).items():
            console.print(Text(f"{label + ':':<18}{told}", "red" if "FAILED" in told else ""))
    if unsupported and not quiet:
        console.print()
        for name, reason in unsupported:
            console.print(Text.assemble(("not run", "yellow"), f"  {name}: {line(reason)}"))
    console.print(_closing(outcomes, seconds))


def matrix(outcomes: Sequence[Outcome], invariant: Sequence[str]) -> Table:
    """Implementation x how many properties held, failed, did not apply; those that engines ask for by name apart."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("implementation", overflow="fold")
    for heading in ("held", "fail", "n/a"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in NAMED.values():
        table.add_column(heading, overflow="fold")
    for name in dict.fromkeys(one.implementation for one in outcomes):
        own = [one for one in outcomes if one.implementation == name]
        worst = {number: _worst(own, number) for number in dict.fromkeys(one.number for one in own)}
        counts = Counter(worst.values())
        failed = Text(str(counts["failed"]), "bold red" if counts["failed"] else "")
        cells = [_named(own, label, name in invariant) for label in NAMED]
        table.add_row(name, str(counts["held"]), failed, str(counts["not applicable"]), *cells)
    return table


def _worst(own: Sequence[Outcome], number: int) -> str:
    """What became of one property over all cases."""
    seen = {one.status for one in own if one.number == number}
    return next(status for status in ("failed", "held", "not applicable") if status in seen)


def _named(own: Sequence[Outcome], label: str, invariant: bool) -> Text:
    found = [one for one in own if one.name == label]
    status = _worst(own, found[0].number)
    if status == "failed":
        return Text("FAILED", "bold red")
    if status != "held":
        return Text("-", "dim")
    return Text("bitwise" if invariant else "in budget") if label == "batch-invariance" else Text("held")


def _print_failure(console: Console, one: Outcome) -> None:
    statement = next(x.statement for x in PROPERTIES if x.number == one.number)
    console.print(Text.assemble("\n", ("FAILED", "bold red"), f"  {one.implementation}: {one.number} {one.name}"))
    for text in (line(one.reason), f"stated: {statement}"):
        console.print(Padding(Text(text), (0, 0, 0, 2), expand=False))
    console.print(f"  {one.case}", soft_wrap=True, highlight=False)


def listing() -> str:
    """Every property: number, name, statement and operators, wrapped."""
    import textwrap

    lines = []
    for one in PROPERTIES:
        lines.append(f"{one.number:>2} {one.name}  ({', '.join(one.operators)})")
        lines.append(one.statement)
    return "".join(
        textwrap.fill(text, 80, initial_indent="   " if i % 2 else "", subsequent_indent="   ") + "\n"
        for i, text in enumerate(lines)
    )


def _closing(outcomes: Sequence[Outcome], seconds: float) -> Text:
    counts = Counter(one.status for one in outcomes)
    told = f"{plural(len({one.implementation for one in outcomes}), 'implementation')}: {counts['held']} held, "
    told += f"{counts['failed']} failed, {counts['not applicable']} not applicable; {duration(seconds)}"
    return Text("\n" + told, "red" if counts["failed"] else "")
