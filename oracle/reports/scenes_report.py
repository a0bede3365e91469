"""A replay of scenes or cases for people: the story, one table a variant, and what the first failure was seen by."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..replay.expected import Outcome
from ..replay.operator_incident import OperatorIncident
from ..replay.steps_incident import StepsIncident
from .outcomes import SPELT, STYLES, met
from .plain import duration, line

_WIDTH = 78


def report(
    console: Console, incident: StepsIncident | OperatorIncident, seen: Sequence[Outcome], seconds: float
) -> None:
    """Print a replay; 80 columns hold every line."""
    console.print(Text(f"{incident.name}: {incident.title}", "bold"), width=_WIDTH)
    console.print(Text(incident.story), width=_WIDTH)
    for name, group in groupby(seen, key=lambda one: one.variant):
        rows = list(group)
        console.print(Text.assemble("\n", (name, "bold"), f"  {incident.variant(name).what}"), width=_WIDTH)
        console.print(_table(rows), width=_WIDTH)
        _said(console, rows)
    parties = sorted({party for one in seen for party in one.wanted_by})
    text = Text(f"\nexpected FAIL by {', '.join(parties) or 'nobody'} where a faulty variant fails; ")
    console.print(text.append_text(met(seen)).append(f", {duration(seconds)}"), width=_WIDTH)


def _table(rows: Sequence[Outcome]) -> Table:
    routed = any(one.facts.get("route_executed") for one in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("scene" if routed else "case", overflow="fold")
    if routed:
        table.add_column("ran", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen by", overflow="fold")
    for one in rows:
        cells = [Text(one.name)]
        if routed:
            cells.append(Text(one.facts.get("route_executed", "-").replace("_mha", "").replace("sparse_mqa", "mqa")))
        found = ", ".join(one.detected_by) or "-"
        table.add_row(*cells, Text(one.status, STYLES[one.status]), Text(found, "" if one.met else "bold red"))
    return table


def _said(console: Console, rows: Sequence[Outcome]) -> None:
    """What was said of the first failure, one line a party; those that must see it come first."""
    first = next((one for one in rows if one.status == "FAIL"), None)
    if first is None:
        return
    told = dict(zip(first.detected_by, first.said, strict=True))
    ordered = sorted(told, key=lambda party: party not in first.wanted_by)
    console.print(Text(f"  {first.name}:", "dim"), width=_WIDTH)
    for party in ordered[:SPELT]:
        words = told[party] if told[party].startswith(party) else f"{party}: {told[party]}"
        console.print(Padding(Text(line(words)), (0, 0, 0, 4)), width=_WIDTH)
