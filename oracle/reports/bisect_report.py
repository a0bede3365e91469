"""A bisection for people: one line a look while it runs, and at the end the boundary with both commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bisect.bisection import Found
from ..bisect.knobs import Culprit
from ..bisect.look import Look
from ..bisect.stages import Exchanged
from .plain import duration, line, plural

_STYLES = {"good": "green", "bad": "bold red", "skip": "yellow"}
#: Commits are shown by as many characters as people do.
_COMMIT = 12


def short(point: str) -> str:
    """A full commit id cut to twelve characters; anything else as it is."""
    return point[:_COMMIT] if len(point) == 40 and set(point) <= set("0123456789abcdef") else point


def look_line(point: str, look: Look) -> Text:
    """One look as it comes."""
    told = look.detail if look.label == "skip" else look.signature
    number = "" if look.measure is None else f"{look.measure:.3g}"
    text = Text.assemble(f"{short(point):<13} ", (f"{look.label:<5}", _STYLES[look.label]))
    return text.append(" ".join(filter(None, (line(told), number, duration(look.seconds)))))


def report(console: Console, found: Found, title: str = "") -> None:
    """The boundary, how sure it is, and what to type to see both sides."""
    what = "the regression came with" if found.direction == "regression" else "the fix came with"
    names = [*found.between, found.first]
    came = short(names[0]) if len(names) == 1 else f"one of {', '.join(map(short, names[:6]))}"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    console.print(Text(f"{found.axis}: {what} {came}{more}", "bold"), soft_wrap=True)
    if title:
        console.print(Text(f"  {line(title)}"), soft_wrap=True)
    sides = ("good", "bad") if found.direction == "regression" else ("bad", "good")
    table = Table.grid(padding=(0, 2, 0, 0))
    for point, label in zip((found.last, found.first), sides, strict=True):
        table.add_row(f"  {short(point)}", Text(label, _STYLES[label]), _failure(found, point, label))
    console.print(table)
    if found.between:
        console.print(f"  {plural(len(found.between), 'point')} between could not be judged", soft_wrap=True)
    sure = f"posterior probability {found.confidence:.4f}, flaky verdicts" if found.flaky else "seen twice on each side"
    spare = f", {found.ahead} more were not needed" if found.ahead else ""
    seen = f"  {sure}; {plural(found.looks, 'look')}, {found.skipped} skipped{spare}, {duration(found.seconds)}"
    console.print(seen, soft_wrap=True)
    console.print("  to see both sides")
    for command in found.commands:
        console.print(f"    {line(command)}", soft_wrap=True)


def _failure(found: Found, point: str, label: str) -> str:
    """What failed at a bad point; of a command's exit code with the last line that it printed."""
    if label != "bad":
        return ""
    looks = [look for at, look in found.evidence if at == point and look.signature == found.signature]
    said = line(looks[-1].detail) if looks and found.signature.startswith("exit code") else ""
    return f"{found.signature}: {said}" if said else found.signature


def found_record(found: Found) -> dict[str, Any]:
    """The entry of ``results[]`` that says what was found."""
    record = asdict(found)
    del record["evidence"]
    return record


def step_records(found: Found) -> list[dict[str, Any]]:
    """Every look, in order."""
    return [{"axis": found.axis, "point": point, **asdict(look)} for point, look in found.evidence]


def report_culprit(console: Console, culprit: Culprit) -> None:
    """Which knobs matter, with both values."""
    known = {knob.name: knob for knob in culprit.knobs}
    console.print(
        Text(f"{plural(len(known), 'knob')} differ; needed for the failure: {', '.join(culprit.breaks)}", "bold")
    )
    sets = ((culprit.breaks, "turned to bad, enough to break the good side"), (culprit.cures, "turned to good, a cure"))
    for names, what in sets:
        console.print(f"  {what}")
        for name in names:
            knob = known[name]
            console.print(f"    {name}: good {_value(knob.good)}, bad {_value(knob.bad)}", soft_wrap=True)
    console.print(f"  {culprit.signature}; {plural(len(culprit.looks), 'look')}", soft_wrap=True)


def culprit_record(culprit: Culprit) -> dict[str, Any]:
    """The entry of ``results[]`` for knobs; values as text, since some are tables."""
    return {
        "knobs": [{"name": k.name, "good": _value(k.good), "bad": _value(k.bad)} for k in culprit.knobs],
        "breaks": culprit.breaks,
        "cures": culprit.cures,
        "signature": culprit.signature,
        "looks": [{"point": name, **asdict(look)} for name, look in culprit.looks],
    }


def report_stages(console: Console, good: str, bad: str, found: Sequence[Exchanged]) -> None:
    """A line a stage: what its exchange alone does, both ways."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("stage", f"{bad} with it from {good}", f"{good} with it from {bad}"):
        table.add_column(heading)
    for one in found:
        cells = [
            Text("PASS" if look.label == "good" else look.signature, _STYLES[look.label])
            for look in (one.in_bad, one.in_good)
        ]
        table.add_row(Text(one.stage, "bold" if one.culprit else ""), *cells)
    console.print(table)
    names = [one.stage for one in found if one.culprit]
    told = ", ".join(names) if names else "no single stage: the fault takes more than one"
    console.print(Text(f"the failure is in: {told}", "bold"), soft_wrap=True)


def _value(value: Any) -> str:
    text = line(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
