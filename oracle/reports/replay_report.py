"""A replay for people and as JSON: one incident in full, or a line for each of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..replay.expected import Outcome
from ..replay.incident import AnyIncident, Incident
from ..replay.outcome import Seen
from ..replay.play import Judged
from . import prompts_report, scenes_report
from .outcomes import met
from .plain import duration, plural

#: Characters of a title in the line of an incident.
_TITLE = 27


@dataclass(frozen=True, slots=True)
class Advance:
    """How a step counts in the progress line: FAIL is what was not expected."""

    status: str


def report(console: Console, incident: AnyIncident, seen: Sequence[Judged], seconds: float) -> None:
    """Print one incident in full; 80 columns hold every line of the tables."""
    if isinstance(incident, Incident):
        prompts_report.report(console, incident, [one for one in seen if isinstance(one, Seen)], seconds)
    else:
        scenes_report.report(console, incident, [one for one in seen if isinstance(one, Outcome)], seconds)


def report_all(console: Console, played: Sequence[tuple[AnyIncident, Sequence[Judged], float]], seconds: float) -> None:
    """A line for each incident, and one for all."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("incident", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("fail", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for incident, seen, taken in played:
        right = all(one.met for one in seen)
        title = Text(incident.title)
        title.truncate(_TITLE, overflow="ellipsis")
        table.add_row(
            incident.name,
            title,
            str(len(seen)),
            str(sum(one.status == "FAIL" for one in seen)),
            Text("as expected", "green") if right else Text("NOT SO", "bold red"),
            duration(taken),
        )
    console.print(table, width=80)
    everything = [one for _, seen, _ in played for one in seen]
    text = Text(f"\n{plural(len(played), 'incident')}: faulty variants fail where they must and cures pass; ")
    console.print(text.append_text(met(everything)).append(f", {duration(seconds)}"), soft_wrap=True)


def step_record(incident: str, one: Judged) -> dict[str, Any]:
    """An entry of ``steps[]``."""
    return {"incident": incident, **asdict(one), "met": one.met}


def summary_record(seen: Sequence[tuple[str, Judged]], seconds: float) -> dict[str, Any]:
    missed = [f"{name} {one.variant} {one.name}" for name, one in seen if not one.met]
    counts = {status: sum(one.status == status for _, one in seen) for status in ("PASS", "FAIL")}
    return {
        "incidents": len({name for name, _ in seen}),
        "steps": len(seen),
        "counts": counts,
        "as_expected": not missed,
        "unexpected": missed,
        "seconds": seconds,
    }
