"""An audit of routing tables, for people and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..routes.audit import STAGES, Row, TableAudit
from ..routes.findings import Finding
from ..routes.grammar import length_text
from ..routes.intervals import Reach
from .plain import line, plural

_STYLES = {"note": "", "warning": "yellow", "error": "bold red"}
#: These are what the cells of the table show.
_IN_TABLE = ("dead-row", "dead-part", "single-point", "pure-limit", "shadowed")


def findings_json(found: Mapping[Finding, Sequence[str]]) -> list[dict[str, Any]]:
    """JSON-ready, with the rule versions of each finding."""
    return [{**finding.as_dict(), "rules": list(versions)} for finding, versions in found.items()]


def boundaries_json(audits: Sequence[TableAudit]) -> list[dict[str, Any]]:
    """JSON-ready: the last length before each change, by version, table row and number of prefills."""
    return [
        {
            "rules": audit.rules,
            "row": probe.group,
            "prefills": probe.prefills,
            "query": probe.boundaries.query,
            "seq": probe.boundaries.seq,
        }
        for audit in audits
        for probe in audit.probes
    ]


def print_audit(
    console: Console,
    audits: Sequence[TableAudit],
    found: Mapping[Finding, Sequence[str]],
    *,
    own: Collection[str] | None = None,
) -> None:
    """The tables, equal ones once; then what their cells do not show; the count last.

    ``own``: the rows of the file that is audited. Others, which it inherits, are folded into a line where there is one.
    """
    folded = [each for audit in audits for each in _groups(audit) if own and each not in own]
    if len(folded) == sum(len(_groups(audit)) for audit in audits):
        folded = []
    audits = [_without(audit, folded) for audit in audits]
    shown = {finding: versions for finding, versions in found.items() if not _of_folded(finding, folded)}
    for name, meaning in STAGES:
        console.print(Text.assemble((f"{name:<11}", "bold"), meaning))
    tables: dict[tuple[object, ...], list[TableAudit]] = {}
    for audit in audits:
        if audit.probes:
            tables.setdefault((audit.rows, audit.limits, audit.probes), []).append(audit)
    for same in tables.values():
        console.print(Text(f"\nrules {', '.join(line(audit.rules) for audit in same)}", "bold"))
        console.print(Text("query lengths that take masked MHA, by number of prefills in the step", "dim"))
        console.print(_table(same[0]))
        _print_probes(console, same[0])
    if folded:
        quiet = f"{plural(len(folded), 'inherited row')} folded, with {plural(len(found) - len(shown), 'note')} on them"
        console.print(Text(f"\n{quiet}; --all shows them", "dim"))
    _print_rest(console, shown)
    levels = [finding.level for finding in found]
    told = (plural(levels.count(level), level) for level in ("error", "warning", "note"))
    console.print(Text(f"\n{plural(len(found), 'finding')}: {', '.join(told)}"))


def _groups(audit: TableAudit) -> tuple[str, ...]:
    return tuple(dict.fromkeys(probe.group for probe in audit.probes))


def _without(audit: TableAudit, folded: Collection[str]) -> TableAudit:
    rows = tuple(row for row in audit.rows if row.entry.group not in folded)
    return replace(audit, rows=rows, probes=tuple(probe for probe in audit.probes if probe.group not in folded))


def _of_folded(finding: Finding, folded: Collection[str]) -> bool:
    """Warnings and errors are told wherever they are."""
    return finding.level == "note" and any(f"{finding.row} ".startswith(f"{group} ") for group in folded)


def _table(audit: TableAudit) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("entry", overflow="fold")
    for each in audit.prefills:
        table.add_column(f"B = {each}", no_wrap=True)
    limits = ("no guard" if limit is None else f"..{_length(limit)}" for limit in audit.limits)
    table.add_row("mask workspace, pure", *limits)
    for group, rows in groupby(audit.rows, key=lambda row: row.entry.group):
        table.add_row(Text(line(group), "bold"))
        for row in rows:
            table.add_row(f"  {row.entry.label}", *(_cell(row, left) for left in row.reaches))
    for group in _groups(audit):
        if all(row.entry.group != group for row in audit.rows):
            table.add_row(Text(line(group), "bold"))
            table.add_row("  no interval", *(Text("never", "dim") for _ in audit.prefills))
    return table


def _cell(row: Row, left: Reach) -> Text:
    if left.wanted is None:
        return Text("error", "bold red") if row.entry.fault else Text("dense MHA", "dim")
    if left.alive is None:
        return Text("dead", "red")
    if left.alive[0] == left.alive[1]:
        return Text(f"{_length(left.alive[0])} only", "yellow")
    return Text("..".join(map(_length, left.alive)), "" if left.alive == left.wanted else "yellow")


def _length(tokens: int) -> str:
    return length_text(tokens).upper()


def _print_probes(console: Console, audit: TableAudit) -> None:
    """Boundary lengths for the first number of prefills; the document has all."""
    console.print(Text(f"\nlengths to probe at B = {audit.prefills[0]}, each and one token more", "dim"))
    for probe in audit.probes:
        if probe.prefills == audit.prefills[0]:
            console.print(Text(line(probe.group), "bold"))
            for name, lengths in (("query", probe.boundaries.query), ("seq", probe.boundaries.seq)):
                grid = Table.grid(padding=(0, 1, 0, 0))
                grid.add_column(min_width=7)
                grid.add_column(overflow="fold")
                grid.add_row(f"  {name}", " ".join(str(each) for each in lengths))
                console.print(grid)


def _print_rest(console: Console, found: Mapping[Finding, Sequence[str]]) -> None:
    rank = {"error": 0, "warning": 1, "note": 2}
    rest = sorted(
        (finding for finding in found if finding.kind not in _IN_TABLE),
        key=lambda finding: (rank[finding.level], finding.kind),
    )
    for (level, kind), same in groupby(rest, key=lambda finding: (finding.level, finding.kind)):
        console.print(Text(f"\n{level}: {kind}", _STYLES[level] or "bold"))
        for finding in same:
            versions = found[finding]
            where = finding.row if finding.prefills is None else f"{finding.row}, B = {finding.prefills}"
            through = f" to {versions[-1]}" if len(versions) > 1 else ""
            told = Text.assemble(f"{line(where)} ", (f"({line(versions[0] + through)})", "dim"))
            console.print(Padding(told, (0, 0, 0, 2), expand=False))
            console.print(Padding(Text(line(finding.message)), (0, 0, 0, 4), expand=False))
