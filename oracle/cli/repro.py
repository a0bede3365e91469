"""``attnoracle repro``: one case again, with everything that is known about the outcome."""

from __future__ import annotations

import typer

from ..device import settle
from ..pool import Pool
from ..reports.table import closing, print_block
from . import guests, options
from .judging import Documents, judge
from .selection import implementations, named_cases, pair, suite_cases
from .terminal import console


def repro(
    context: typer.Context,
    case: options.CaseId,
    implementation: options.Implementations = None,
    impl: guests.Impl = None,
    operator: options.Operators = None,
    contract: guests.Contract = None,
    adapter: guests.Adapter = None,
    geometry: options.Geometries = None,
    device: options.DeviceName = options.Device.auto,
    json: options.Json = None,
) -> None:
    """Run one case again and show the outcome in full.

    Runs in this process, so that a debugger sees the kernel.
    """
    documents = Documents(json)
    guests.geometries(geometry)
    cases = named_cases([case], suggestions=lambda: suite_cases("quick", 0, ()))
    brought = guests.Brought.of(impl, operator or [cases[0].operator], contract, adapter)
    where = settle(device)
    mine = brought.admitted() if brought else ()
    pairs = pair(cases, implementations([*(implementation or ()), *(one.name for one in mine)], operator or ()))
    with Pool(jobs=1, device=where) as pool:
        verdicts, summary = judge(pool, pairs, quiet=True)
    documents.write(["attnoracle", *context.obj], summary, verdicts)
    screen = console(stderr=documents.owns_stdout)
    for i, verdict in enumerate(verdicts):
        if i:
            screen.print()
        print_block(screen, verdict, measures=True)
    screen.print(closing(summary))
    raise typer.Exit(summary.exit_code)
