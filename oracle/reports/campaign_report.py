"""A campaign for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..campaign.findings import Finding
from ..campaign.groups import GROUPS
from ..campaign.guide import Call
from ..campaign.night import Night
from ..campaign.scenes import is_scene
from ..campaign.scenes import repro as scene_repro
from ..cause.named import FAULT as PLANTED
from ..cause.named import HIDDEN
from ..records.ledger import Known
from ..records.verdict_json import parse_verdict, verdict_record
from ..verdict import STATUSES, Status, Verdict
from . import json_report
from .plain import duration, line, plural
from .summary import FAULT, NOTHING, WELL, Summary

#: Closest calls that are shown of each measure; the JSON has more.
SHOWN = 4
_MOST = 40
#: Groups that have a column, and its heading; with the longest name a row has to fit 80 columns.
_COLUMNS = {"lengths": "lengths", "meets": "meets", "values": "values", "contract": "terms", "pairs": "pairs"}


@dataclass(frozen=True, slots=True)
class Told:
    """One finding and what to say of it."""

    finding: Finding
    known: Known | None
    state: str
    """``new`` in this night, ``again`` or ``gone`` of an earlier one, ``not tried`` where its kernel took no part."""

    @property
    def counts(self) -> bool:
        """Whether it makes the night fail."""
        return self.known is None and self.state in ("new", "again")


def told(night: Night, ledger: Sequence[Known], today: date) -> list[Told]:
    """All findings of the corpus, those that count first."""
    found = []
    for finding in night.findings:
        verdicts = (finding.verdict, smallest(finding))
        known = next((one for one in ledger if any(one.covers(verdict, today) for verdict in verdicts)), None)
        found.append(Told(finding, known, _state(finding, night)))
    return sorted(found, key=lambda one: (not one.counts, one.finding.place))


def _state(finding: Finding, night: Night) -> str:
    if finding.again:
        return "again" if finding.again in ("FAIL", "ERROR") else "gone"
    return "new" if finding.implementation in night.names else "not tried"


def exit_code(night: Night, findings: Sequence[Told]) -> int:
    """1 with a finding that is not known and fails; 2 where nothing was judged; else 0."""
    if any(one.counts for one in findings):
        return FAULT
    return WELL if night.counts["PASS"] + night.counts["FAIL"] else NOTHING


def smallest(finding: Finding) -> Verdict:
    """The verdict on the smallest case; the first one where it was not looked for."""
    if finding.cause is not None and "verdict" in finding.cause:
        return parse_verdict(finding.cause["verdict"])
    return finding.verdict


def repro(finding: Finding) -> str:
    """The command that shows it again; planted faults are known to ``diagnose``, not to ``repro``."""
    verdict = smallest(finding)
    if is_scene(verdict.implementation):
        return scene_repro(verdict.case, verdict.implementation)
    if verdict.implementation.startswith((PLANTED, HIDDEN)):
        return f"attnoracle diagnose '{verdict.case.id}' --implementation {verdict.implementation}"
    return verdict.repro


def for_page(night: Night, findings: Sequence[Told]) -> Summary:
    """The counts of the night; its failures are known where no finding counts."""
    bad = night.counts["FAIL"] + night.counts["ERROR"]
    counts: dict[Status, int] = {status: night.counts[status] for status in STATUSES}
    return Summary(counts, night.seconds, 0 if exit_code(night, findings) == FAULT else bad)


def summary(night: Night, findings: Sequence[Told], settings: dict[str, Any]) -> dict[str, Any]:
    """The summary of the JSON document."""
    seconds = max(night.seconds, 1e-9)
    return {
        **settings,
        "cases": night.cases,
        "seconds": round(night.seconds, 3),
        "cases_per_second": round(night.cases / seconds, 3),
        **{status.lower(): count for status, count in sorted(night.counts.items())},
        "findings": len(findings),
        "new": sum(one.state == "new" for one in findings),
        "known": sum(one.known is not None for one in findings),
        "failures": night.findings.failures,
        "classes": sum(len(seen) for groups in night.guide.seen.values() for seen in groups.values()),
        "corpus": {
            "cases": len(night.corpus.results),
            "nights": len(night.corpus.nights),
            "planned": sum(map(len, night.corpus.plans.values())) - len(night.corpus.results),
        },
        "exit_code": exit_code(night, findings),
    }


def document(
    command: Sequence[str], environment: dict[str, Any], night: Night, findings: Sequence[Told], told: dict[str, Any]
) -> dict[str, Any]:
    """``attnoracle.campaign``, version 1; ``told`` is the summary."""
    return json_report.document(
        "campaign",
        command,
        environment,
        told,
        findings=[_finding(one) for one in findings],
        coverage=list(_coverage(night)),
        closest=[_call(call) for call in night.guide.closest()[:_MOST]],
    )


def _finding(one: Told) -> dict[str, Any]:
    finding, cause = one.finding, one.finding.cause or {}
    return {
        "implementation": finding.implementation,
        "status": finding.verdict.status,
        "state": one.state,
        "known": one.known.link if one.known else None,
        "occurrences": finding.count,
        "devices": sorted(finding.devices),
        "signature": finding.signature.as_list(),
        "place": finding.place,
        "first": finding.verdict.case.id,
        "case": finding.smallest.id,
        "conclusion": cause.get("conclusion", ""),
        "note": cause.get("note", "" if finding.cause else "not looked into yet"),
        "bundle": cause.get("bundle"),
        "after_seconds": cause.get("after_seconds"),
        "repro": repro(finding),
        "verdict": cause.get("verdict") or verdict_record(finding.verdict),
    }


def _coverage(night: Night) -> Iterator[dict[str, Any]]:
    for name in sorted(night.guide.seen):
        for group in GROUPS:
            seen, drawn = night.guide.seen[name][group], night.guide.drawn[name][group]
            yield {"implementation": name, "group": group, "seen": len(seen), "drawn": len(seen | drawn)}


def _call(call: Call) -> dict[str, Any]:
    return {
        "implementation": call.implementation,
        "measure": call.measure,
        "value": call.value,
        "case": call.case.id,
    }


def report(console: Console, night: Night, findings: Sequence[Told], told: dict[str, Any]) -> None:
    """Coverage, closest calls, findings, and one line last."""
    if night.guide.seen:
        console.print(table(night))
    _print_closest(console, night.guide.nearest())
    for one in findings:
        _print_finding(console, one, night)
    console.print(_closing(night, findings, told))


def table(night: Night) -> Table:
    """A line for each implementation: cases, findings, the closest call, and the share of the classes that were met
    with and seen."""
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    grid.add_column("implementation", overflow="fold", min_width=20)
    for heading in ("cases", "found", "worst", *_COLUMNS.values()):
        grid.add_column(heading, justify="right", no_wrap=True)
    results, pairs = night.corpus.results, dict(night.corpus.planned())
    worst = {call.implementation: call.value for call in night.guide.nearest() if call.measure == "ratio"}
    for name in sorted({pairs[place][1] for place in results}):
        count = sum(pairs[place][1] == name for place in results)
        found = sum(finding.implementation == name for finding in night.findings)
        seen, drawn = night.guide.seen[name], night.guide.drawn[name]
        cells = [Text(str(count)), Text(str(found), "bold red") if found else Text("-", "dim")]
        cells.append(Text(f"{worst[name]:.2g}") if name in worst else Text("-", "dim"))
        for group in _COLUMNS:
            every = len(seen[group] | drawn[group])
            cells.append(Text(f"{len(seen[group]) / every:.0%}") if every else Text("-", "dim"))
        grid.add_row(Text(line(name)), *cells)
    return grid


def _print_closest(console: Console, calls: Sequence[Call]) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for measure in ("ratio", "margin"):
        for call in [call for call in calls if call.measure == measure][:SHOWN]:
            grid.add_row(
                Text(f"{measure} {call.value:.3g}"), Text(line(call.implementation)), Text(call.case.id, "dim")
            )
    if grid.row_count:
        console.print("\nclosest calls")
        console.print(Padding(grid, (0, 0, 0, 2), expand=False))


def _print_finding(console: Console, one: Told, night: Night) -> None:
    finding, cause = one.finding, one.finding.cause or {}
    style = "bold red" if one.counts else "yellow"
    head = Text.assemble("\n", (finding.verdict.status, style), f"  {line(finding.implementation)}")
    head.append(f"  {plural(finding.count, 'time')}, {one.state}", "dim")
    console.print(head)
    if one.known is not None:
        console.print(
            Text.assemble(("  known    ", "dim"), f"{one.known.link} until {one.known.expires}"), soft_wrap=True
        )
    console.print(Text.assemble(("  what     ", "dim"), line(str(finding.signature))), soft_wrap=True)
    console.print(Text.assemble(("  case     ", "dim"), finding.smallest.id), soft_wrap=True)
    if cause.get("conclusion"):
        console.print(Text.assemble(("  cause    ", "dim"), line(cause["conclusion"])), soft_wrap=True)
    note = cause.get("note", "") if finding.cause is not None else "not looked into yet; the next night does"
    if note:
        console.print(Text.assemble(("  note     ", "dim"), line(note)), soft_wrap=True)
    if cause.get("bundle"):
        place = night.corpus.folder / cause["bundle"]
        console.print(Text.assemble(("  bundle   ", "dim"), str(place)), soft_wrap=True)
    console.print(Text.assemble(("  repro    ", "dim"), repro(finding)), soft_wrap=True)


def _closing(night: Night, findings: Sequence[Told], told: dict[str, Any]) -> Text:
    text = Text(f"\n{plural(night.cases, 'case')} in {duration(night.seconds)}, {told['cases_per_second']:.2g}/s: ")
    count = sum(one.counts for one in findings)
    text.append(plural(count, "finding"), "bold red" if count else "green")
    if told["known"]:
        text.append(f", {told['known']} known", "yellow")
    corpus = told["corpus"]
    text.append(f"; {told['classes']:,} classes; corpus: {plural(corpus['cases'], 'case')}")
    text.append(f", {plural(corpus['nights'], 'night')}" if corpus["nights"] > 1 else "")
    if not (night.counts["PASS"] + night.counts["FAIL"]) and not count:
        text.append("; nothing could be judged", "yellow")
    return text
