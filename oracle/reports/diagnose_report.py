"""What a person reads of a diagnosis, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..diagnose.diagnosis import Diagnosis
from ..diagnose.errormap import ErrorMap, as_records, strip
from ..diagnose.ranking import Ranked
from ..environment import environment
from ..records.verdict_json import case_record, verdict_record
from .json_report import document as envelope
from .json_report import dumps
from .plain import duration, line, share


def record(found: Diagnosis) -> dict[str, Any]:
    """JSON-ready: the conclusion, marks, maps, hypotheses and stage."""
    return {
        "case": case_record(found.case),
        "implementation": found.verdict.implementation if found.verdict else "",
        "conclusion": found.conclusion,
        "marks": [{"name": m.name, "stage": m.stage, "words": m.words} for m in found.marks],
        "maps": as_records(list(found.maps)),
        "hypotheses": [_hypothesis(one) for one in found.ranked],
        "tied": [{"name": each.name, "words": each.words} for each in found.tied],
        "stage": None
        if found.located is None
        else {
            "stage": found.located.stage,
            "why": found.located.why,
            "probes": [{"name": p.name, "out": p.out, "lse": p.lse} for p in found.located.probes],
        },
        "seconds": round(found.seconds, 3),
    }


def document(command: Sequence[str], found: Diagnosis) -> str:
    """``attnoracle.diagnose``, version 1."""
    summary = {
        "conclusion": found.conclusion,
        "explained": bool(found.marks or (found.ranked and found.ranked[0].fits)),
    }
    verdicts = [verdict_record(found.verdict)] if found.verdict else []
    return dumps(envelope("diagnose", command, environment(), summary, diagnoses=[record(found)], verdicts=verdicts))


def report(console: Console, found: Diagnosis) -> None:
    """The conclusion last, where the eye lands."""
    for one in found.maps:
        console.print(_map(one))
    if found.ranked:
        console.print(_hypotheses(found.ranked))
    if found.located is not None:
        where = found.located.stage or "undecided"
        console.print(Text.assemble(("\nstage  ", "dim"), (where, "bold"), f": {found.located.why}"))
        for probe in found.located.probes:
            console.print(Text(f"       {probe}", "dim"))
    for mark in found.marks[1:]:
        console.print(Text.assemble(("also   ", "dim"), line(mark.words)))
    took = f" ({duration(found.seconds)})"
    console.print(Text.assemble(("\ncause  ", "dim"), (line(found.conclusion), "bold"), (took, "dim")))


def _map(one: ErrorMap) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    strange = f", {one.strange:,} NaN or infinite" if one.strange else ""
    table.add_column(f"{one.output}", no_wrap=True)
    table.add_column(f"{one.wrong:,} of {one.size:,} wrong{strange}", no_wrap=True)
    table.add_column("", overflow="fold")
    for axis in one.axes:
        told = axis.rule if axis.hit < axis.size else "all"
        table.add_row(Text(axis.name, "dim"), strip(axis.shares), told)
    return table


def _hypotheses(ranked: Sequence[Ranked]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=True)
    table.add_column("\nexplains", justify="right", no_wrap=True)
    table.add_column("\nhypothesis", overflow="fold")
    table.add_column("\nstage", no_wrap=True)
    for one in ranked:
        told = Text(line(one.hypothesis.words), "" if one.fits else "dim")
        for other in one.also[:3]:
            told.append(f"\n  the same here: {line(other.words)}", "dim")
        table.add_row(share(one.explained), told, one.hypothesis.stage)
    return table


def _hypothesis(one: Ranked) -> dict[str, Any]:
    return {
        "name": one.hypothesis.name,
        "words": one.hypothesis.words,
        "stage": one.hypothesis.stage,
        "explained": one.explained,
        "fits": one.fits,
        "parameters": one.hypothesis.parameters,
        "same_here": [{"name": other.name, "words": other.words} for other in one.also],
    }
