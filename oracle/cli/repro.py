"""``attnoracle repro``: one case again, with everything that is known about the outcome."""

from __future__ import annotations

import typer

from ..device import settle
from ..pool import Pool
from ..reports.table import closing, print_block
from . import options
from .judging import Documents, judge
from .selection import implementations, named_cases, pair, suite_cases
from .terminal import console


def repro(
    context: typer.Context,
    case: options.CaseId,
    implementation: options.Implementations = None,
    device: options.DeviceName = options.Device.auto,
    json: options.Json = None,
) -> None:
    """Run one case again and show the outcome in full.

    Runs in this process, so that a debugger sees the kernel.
    """
    documents = Documents(json)
    cases = named_cases([case], suggestions=lambda: suite_cases("quick", 0, ()))
    pairs = pair(cases, implementations(implementation or ()))
    with Pool(jobs=1, device=settle(device)) as pool:
        verdicts, summary = judge(pool, pairs, quiet=True)
    documents.write(["attnoracle", *context.obj], summary, verdicts)
    screen = console(stderr=documents.owns_stdout)
    for i, verdict in enumerate(verdicts):
        if i:
            screen.print()
        print_block(screen, verdict, measures=True)
    screen.print(closing(summary))
    raise typer.Exit(summary.exit_code)
