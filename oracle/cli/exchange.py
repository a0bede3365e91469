"""``attnoracle exchange``: workloads and traces in the JSON of flashinfer-bench."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..device import settle
from ..errors import BadInput
from ..reports.plain import line
from ..reports.table import STYLES
from ..verdict import Verdict
from . import guests, options
from .selection import implementations, named_cases, suite_cases
from .terminal import check_target, clean_stdout, console, write

if TYPE_CHECKING:
    from ...optimized.implementation import Implementation

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Holds definitions/, workloads/, traces/, blob/.")]
Written = Annotated[list[str] | None, typer.Option("--case", metavar="ID", help="Write this case. Repeatable.")]
Judged = Annotated[
    list[str] | None,
    typer.Option("--implementation", "-i", metavar="NAME", help="Judge this one, like '*/triton'. Repeatable."),
]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", metavar="UUID", help="Only this one; its beginning is enough. Repeatable."),
]


def exchange(
    context: typer.Context,
    folder: Folder,
    case: Written = None,
    implementation: Judged = None,
    impl: guests.Impl = None,
    operator: options.Operators = None,
    contract: guests.Contract = None,
    adapter: guests.Adapter = None,
    geometry: options.Geometries = None,
    workload: Workloads = None,
    device: options.DeviceName = options.Device.auto,
    json: options.Json = None,
) -> None:
    """Write cases as workloads of flashinfer-bench (--case); judge kernels on such and write traces (-i, --impl)."""
    from ..environment import environment
    from ..interchange import write as write_cases
    from ..reports.json_report import check_document, dumps
    from ..reports.summary import Summary
    from ..reports.table import closing

    check_target("--json", json)
    guests.geometries(geometry)
    root = Path(folder)
    brought = guests.Brought.of(impl, operator, contract, adapter)
    if not case and not implementation and not brought:
        raise BadInput("exchange: expected --case ID to write workloads, or -i NAME or --impl TARGET to judge them")
    screen = console(stderr=json == "-")
    if case:
        found = write_cases(root, named_cases(case, suggestions=lambda: suite_cases("quick", 0, ())))
        for one in found:
            screen.print(Text.assemble("workload  ", f"{one.workload.uuid}  ", one.definition), soft_wrap=True)
    if not implementation and not brought:
        raise typer.Exit(0)
    started, where = time.monotonic(), settle(device)
    mine = guests.with_contracts(brought.admitted(), where) if brought else ()
    names = [*(implementation or ()), *(one.name for one in mine)]
    candidates = implementations(names, operator or ())
    verdicts = _judged(root, candidates, workload or [], where, screen)
    summary = Summary.of(verdicts, time.monotonic() - started)
    write(json, lambda: dumps(check_document(["attnoracle", *context.obj], environment(), summary, verdicts)))
    screen.print(closing(summary))
    raise typer.Exit(summary.exit_code)


def _judged(
    root: Path, candidates: Sequence[Implementation], wanted: Sequence[str], where: str, screen: Console
) -> list[Verdict]:
    """Verdicts of every workload with every implementation of its operator; traces are written as they come."""
    from ..check import check
    from ..interchange import Trace, add, evaluated, jobs

    verdicts = []
    for job in jobs(root):
        if wanted and not job.workload.uuid.startswith(tuple(wanted)):
            continue
        for one in candidates:
            if one.operator != job.form.operator:
                continue
            with clean_stdout():
                verdict = check(job.case, one, device=where, draw=job.draw)
                record = evaluated(job, one, verdict, where)
            verdicts.append(verdict)
            if record is not None:
                target = root / "traces" / job.form.op_type / f"{job.definition.name}.jsonl"
                add(target, [Trace(job.definition.name, job.workload, one.name, record)])
            _tell(screen, job.workload.uuid, verdict, "" if job.ours else str(root))
    if not verdicts:
        operators = ", ".join(sorted({one.operator for one in candidates}))
        raise BadInput(f"{root}: expected a workload of {operators or 'an implementation that is known'}, found none")
    return verdicts


def _tell(screen: Console, uuid: str, verdict: Verdict, folder: str) -> None:
    """One line a verdict, and what was found; ``folder`` where its case does not stand for its inputs."""
    head = Text.assemble((f"{verdict.status:<12}", STYLES[verdict.status]), f"{uuid}  {line(verdict.implementation)}")
    screen.print(head, soft_wrap=True)
    if verdict.reason and not verdict.findings:
        screen.print(Text(f"  {line(verdict.reason)}", "dim"), soft_wrap=True)
    for finding in verdict.findings:
        screen.print(Text(f"  {finding.check}: {line(finding.message)}"), soft_wrap=True)
    if verdict.bad:
        again = f"attnoracle exchange {shlex.quote(folder)} --workload {uuid} -i {verdict.implementation}"
        screen.print(Text.assemble(("  again  ", "dim"), again if folder else verdict.repro), soft_wrap=True)
