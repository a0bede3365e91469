"""``attnoracle engine``: a real engine's own decisions and operators beside ours."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..engines.agreement import Comparison


class Name(StrEnum):
    vllm = "vllm"
    sglang = "sglang"


EngineName = Annotated[Name, typer.Argument(metavar="ENGINE", help="Whose code is asked.")]
Source = Annotated[
    str | None, typer.Option("--source", metavar="FOLDER", help="Its Python sources. [default: the installed package]")
]
RulesName = Annotated[
    str | None, typer.Option("--rules", metavar="NAME", help="Our rules, like vllm-0.33. [default: by its version]")
]
Batches = Annotated[int, typer.Option("--batches", metavar="N", min=1, help="Generated batches for the decisions.")]
Cases = Annotated[int, typer.Option("--cases", metavar="N", min=0, help="Generated cases an operator; 0: none.")]


def engine(
    context: typer.Context,
    name: EngineName,
    source: Source = None,
    rules: RulesName = None,
    batches: Batches = 12000,
    cases: Cases = 60,
    seed: options.Seed = 0,
    json: options.Json = None,
) -> None:
    """Ask an engine's own code what ours is asked, and count where they differ.

    Takes single functions out of its sources: nothing of it is imported, started or compiled.
    """
    check_target("--json", json)
    from ..engines import sglang, vllm
    from ..engines.agreement import findings
    from ..engines.source import locate
    from ..environment import environment
    from ..reports import engine_report
    from ..reports.json_report import document, dumps
    from ..reports.progress import progress

    started = time.monotonic()
    found = locate(name, source)
    with progress(console(stderr=True), engine_report.COMPARISONS if name is Name.vllm else 6) as advance:

        def told(one: Comparison) -> None:
            advance(engine_report.Advance.of(one))

        if name is Name.sglang:
            asked = sglang.compare(found, rules=rules, batches=batches, seed=seed, advance=told)
        else:
            asked = vllm.compare(found, rules=rules, batches=batches, cases=cases, seed=seed, advance=told)
        comparisons = list(asked)
    seconds = time.monotonic() - started
    summary = engine_report.summary_record(found, comparisons, batches, seconds)
    if json is not None:
        command = ["attnoracle", *context.obj]
        records = [engine_report.record(one) for one in comparisons]
        lists = {"comparisons": records, "findings": findings(comparisons)}
        write(json, lambda: dumps(document("engine", command, environment(), summary, **lists)))
    engine_report.report(console(stderr=json == "-"), found, comparisons, summary)
    raise typer.Exit(1 if summary["errors"] else 0)
