"""An engine beside ours, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..engines.agreement import Comparison
from ..engines.source import Engine
from .plain import duration, line, plural

#: Comparisons of a whole run.
COMPARISONS = 21
_WIDTH = 78
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Advance:
    """How a comparison counts in the progress line."""

    status: str

    @classmethod
    def of(cls, one: Comparison) -> Advance:
        return cls("FAIL" if one.disagreements and not one.probe else "PASS")


def report(console: Console, engine: Engine, comparisons: Sequence[Comparison], summary: dict[str, Any]) -> None:
    """One line a comparison, and the first example of each disagreement."""
    console.print(Text(f"{engine.name} {engine.version}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("asked", "what", "cases", "differ"):
        table.add_column(heading, justify="right" if heading in ("cases", "differ") else "left", overflow="fold")
    for one in comparisons:
        style = "" if not one.disagreements else "yellow" if one.probe else "bold red"
        table.add_row(one.name, one.what, f"{one.cases:,}", Text(f"{one.disagreements:,}", style))
    console.print(table, width=_WIDTH)
    for one in comparisons:
        for example in one.examples[:1]:
            console.print(
                Text(f"{'note' if one.probe else 'error'}: {one.name}", "yellow" if one.probe else "bold red")
            )
            for key, value in example.items():
                words = line(json.dumps(value, default=str))
                words = words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"
                console.print(Padding(Text(f"{key}: {words}"), (0, 0, 0, 4)), width=_WIDTH)
    text = Text(f"{summary['batches']:,} batches, {plural(len(comparisons), 'comparison')}: ")
    errors = summary["errors"]
    said = f"{plural(errors, 'comparison')} differ" if errors else "no decision and no operator differs"
    text.append(said, "bold red" if errors else "green")
    if summary["notes"]:
        text.append(f", {plural(summary['notes'], 'note')} about inputs that the engine never makes")
    console.print(text.append(f", {duration(summary['seconds'])}"), width=_WIDTH)


def record(one: Comparison) -> dict[str, Any]:
    """An entry of ``comparisons[]``; examples are in ``findings[]``."""
    return {key: value for key, value in asdict(one).items() if key != "examples"}


def summary_record(engine: Engine, comparisons: Sequence[Comparison], batches: int, seconds: float) -> dict[str, Any]:
    differ = [one for one in comparisons if one.disagreements]
    return {
        "engine": engine.name,
        "version": engine.version,
        "batches": batches,
        "cases": sum(one.cases for one in comparisons),
        "errors": sum(not one.probe for one in differ),
        "notes": sum(one.probe for one in differ),
        "seconds": seconds,
    }
