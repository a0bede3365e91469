"""``attnoracle graphs``: capture and replay against eager, over sequences of batches."""

from __future__ import annotations

import contextlib
import sys
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from ..device import settle
from ..errors import BadInput, unknown
from . import options
from .terminal import check_target, console, say, write

if TYPE_CHECKING:
    from ..graphs.faults import GraphFault
    from ..graphs.matrix import Job

Lines = Annotated[
    list[str] | None,
    typer.Option("--sequence", metavar="LINE", help="Like 'PIECEWISE 8 at 20: a12; b6'. Repeatable."),
]
Themes = Annotated[list[str] | None, typer.Option("--theme", metavar="NAME", help="Of shipped sequences. Repeatable.")]
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", metavar="NAME", help="fused, generic, packed, triton, or an implementation. Repeatable."),
]
Faults = Annotated[
    list[str] | None, typer.Option("--fault", metavar="NAME", help="Like pr-52512 or 'calls-*'. Repeatable.")
]
Search = Annotated[
    int | None,
    typer.Option("--search", metavar="N", min=1, help="Try N random sequences instead, and shrink a failing one."),
]


def graphs(
    context: typer.Context,
    sequence: Lines = None,
    theme: Themes = None,
    subject: Subjects = None,
    fault: Faults = None,
    search: Search = None,
    device: options.DeviceName = options.Device.auto,
    jobs: options.Jobs = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    list_: Annotated[bool, typer.Option("--list", help="Print sequences, checks and faults and stop.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Hold CUDA graphs, real or emulated, against eager steps; plant graph faults and see them caught."""
    from ..graphs.faults import GRAPH_FAULTS
    from ..graphs.sequences import Theme, parse, themes

    if list_:
        _print_list()
        return
    check_target("--json", json)
    where = settle(device)
    from ..graphs import matrix
    from ..graphs.setup import WHAT

    subjects = list(dict.fromkeys(subject or ()))
    known_faults = {one.name: one for one in GRAPH_FAULTS}
    chosen = [one for one in GRAPH_FAULTS if any(fnmatchcase(one.name, pattern) for pattern in fault or ())]
    for pattern in fault or ():
        if not any(fnmatchcase(name, pattern) for name in known_faults):
            raise unknown("graph fault", pattern, known_faults)
    if search is not None:
        raise typer.Exit(_search(search, subjects, chosen, where, seed))
    shipped = {one.name: one for one in themes()}
    for name in theme or ():
        if name not in shipped:
            raise unknown("theme", name, shipped)
    single_names = [job.name for job in matrix.singles(where)]
    for name in subjects:
        if name not in WHAT and name not in single_names:
            raise unknown("subject", name, [*WHAT, *single_names])
    layers = [name for name in subjects if name in WHAT]
    given = Theme("given", "", ("fused",), tuple(map(parse, sequence or ())))
    wanted = [given] if sequence else [shipped[name] for name in theme] if theme else list(shipped.values())
    narrowed = bool(sequence or theme or subjects or fault)
    planned: list[matrix.Job] = []
    if layers or not (subjects or (fault and not (sequence or theme))):
        planned += matrix.sequences(wanted, layers, where)
    if not narrowed or subjects:
        planned += [job for job in matrix.singles(where) if not subjects or job.name in subjects]
    if not narrowed:
        planned += matrix.incident(where)
    planned += matrix.faults(chosen if narrowed else GRAPH_FAULTS, where)
    if not planned:
        raise BadInput("graphs: nothing is left to run; name other subjects, themes or faults")
    _run(planned, where, jobs, json, context.obj, quiet=quiet)


def _run(
    planned: list[Job], where: str, jobs: int | None, json: str | None, command: list[str], *, quiet: bool
) -> None:
    from ..environment import environment
    from ..fleet.pool import default_jobs
    from ..graphs import matrix
    from ..reports import graphs_report
    from ..reports.json_report import document, dumps
    from ..reports.progress import progress

    workers = jobs or default_jobs(where)
    started = time.monotonic()
    with (
        progress(console(stderr=True), len(planned), quiet=quiet) as advance,
        contextlib.redirect_stdout(sys.stderr),
    ):
        results = matrix.run_all(planned, workers, advance)
    seconds = time.monotonic() - started
    summary = graphs_report.summary_record(results, seconds)
    if json is not None:
        facts = environment()
        summary["graphs"] = "cuda" if where == "cuda" else "emulated"
        steps, faults = graphs_report.step_records(results), graphs_report.fault_records(results)
        full = ["attnoracle", *command]
        write(json, lambda: dumps(document("graphs", full, facts, summary, steps=steps, faults=faults)))
    graphs_report.report(console(stderr=json == "-"), results, where, seconds)
    ran = any(one.runs or one.error for one in results)
    raise typer.Exit((0 if summary["as_expected"] else 1) if ran else 2)


def _search(count: int, subjects: list[str], chosen: list[GraphFault], device: str, seed: int) -> int:
    from ..graphs.search import search
    from ..graphs.setup import setup

    fault = chosen[0] if chosen else None
    name = fault.subject if fault else (subjects[0] if subjects else "fused")
    found = search(setup(name, device), count, seed=seed, fault=fault)
    if found is None:
        say(f"{count} random sequences on {name}: none breaks a check\n")
        return 0
    say(f'# {found.told}\n[found]\nabout = "found by random search"\nsubjects = ["{name}"]\n')
    say(f'sequences = ["{found.sequence}"]\n')
    return 0 if fault else 1


def _print_list() -> None:
    from ..graphs.faults import GRAPH_FAULTS
    from ..graphs.sequences import themes
    from ..graphs.violation import CHECKS

    for one in themes():
        say(f"{one.name}: {one.about}\n" + "".join(f"  {sequence}\n" for sequence in one.sequences))
    say("\nchecks\n" + "".join(f"  {name}: {what}\n" for name, what in CHECKS.items()))
    say("\nfaults\n" + "".join(f"  {one.name} [{one.check}] {one.what} ({one.source})\n" for one in GRAPH_FAULTS))
