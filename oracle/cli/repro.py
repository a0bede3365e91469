"""``attnoracle repro``: one case again, with everything that is known about the outcome."""

from __future__ import annotations

from typing import Annotated

import typer

from ..device import settle
from ..pool import Pool
from ..reports.table import closing, print_block
from .check import Device
from .judging import Documents, judge
from .selection import implementations, named_cases, pair, suite_cases
from .terminal import console


def repro(
    context: typer.Context,
    case: Annotated[str, typer.Argument(metavar="CASE", help="Id of the case.")],
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Name or pattern; default: all. Repeatable.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto: CUDA if there is any.")] = Device.auto,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write JSON; - is stdout.")] = None,
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
