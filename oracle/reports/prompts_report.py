"""A replay of prompts for people: one table a variant, and one line that says what was expected and seen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..replay.incident import Incident
from ..replay.outcome import Seen
from .outcomes import SPELT, STYLES, met
from .plain import duration, line

_SHORT = {
    "dense_mha": "dense", "masked_mha": "masked", "sparse_mqa": "mqa", "none": "-",
    "layer-contract": "contract", "differential": "diff",
}  # fmt: skip


def report(console: Console, incident: Incident, seen: Sequence[Seen], seconds: float) -> None:
    """Print a replay; 80 columns hold every line of the tables."""
    console.print(Text(f"{incident.name}: {incident.title}", "bold"), soft_wrap=True)
    for name, group in groupby(seen, key=lambda one: one.variant):
        rows = list(group)
        console.print(Text.assemble("\n", (name, "bold"), f"  {incident.variant(name).what}"), soft_wrap=True)
        console.print(_table(rows))
        _companions(console, rows)
        _violations(console, rows)
    console.print(closing(incident, seen, seconds), soft_wrap=True)


def _table(rows: Sequence[Seen]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in ("length", "class", "decided", "ran", "index", "-1", "tokens", "", "seen by"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("length", "-1") else "left")
    for one in rows:
        if not one.companion:
            table.add_row(str(one.prompt_length), *_cells(one))
    return table


def _cells(one: Seen) -> list[Text]:
    share = "-" if one.minus_one_share is None else f"{100 * one.minus_one_share:.0f}%"
    return [
        Text(one.classification),
        Text(_SHORT[one.route_decided]),
        Text("+".join(_SHORT[name] for name in one.route_executed.split("+"))),
        Text("skipped" if one.indexer_skipped else "scored"),
        Text(share),
        Text(tokens(one.tokens)),
        Text(one.status, STYLES[one.status]),
        Text(", ".join(_SHORT[name] for name in one.detected_by) or "-", "" if one.met else "bold red"),
    ]


def tokens(words: Sequence[int], shown: int = 5) -> str:
    """The first words of a continuation."""
    return " ".join(map(str, words[:shown])) + (" …" if len(words) > shown else "")


def _companions(console: Console, rows: Sequence[Seen]) -> None:
    companions = [one for one in rows if one.companion]
    if not companions:
        return
    console.print(Text("  in a batch with", "dim"))
    table = Table.grid(padding=(0, 1, 0, 0))
    for one in companions:
        found = ", ".join(_SHORT[name] for name in one.detected_by) or "-"
        table.add_row(
            one.name, tokens(one.tokens), Text(one.status, STYLES[one.status]), Text(found, "" if one.met else "red")
        )
    console.print(Padding(table, (0, 0, 0, 4), expand=False))


def _violations(console: Console, rows: Sequence[Seen]) -> None:
    """What the contract says of the first prompt that breaks it, one line a rule."""
    first = next((one for one in rows if one.violations), None)
    if first is None:
        return
    rules = {violation.partition(":")[0]: violation for violation in reversed(first.violations)}
    console.print(Text(f"  the layer contract at {first.name}", "dim"))
    for violation in sorted(rules.values())[-SPELT:]:
        console.print(Padding(Text(line(violation)), (0, 0, 0, 4), expand=False))


def closing(incident: Incident, seen: Sequence[Seen], seconds: float) -> Text:
    """What was to be seen, and whether it was."""
    fails = incident.fails
    text = Text(f"\nexpected FAIL at {fails.first} to {fails.last} in faulty variants and PASS elsewhere; ")
    return text.append_text(met(seen)).append(f", {duration(seconds)}")
