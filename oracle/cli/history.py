"""``attnoracle history``: a cell over time, and where its ratio moved."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .terminal import check_target, console, write

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Histories that check --history wrote.")]
CasePattern = Annotated[str, typer.Option("--case", metavar="ID", help="Like 'sparse_mqa:glm-5:*'.")]
Name = Annotated[str, typer.Option("--implementation", "-i", metavar="NAME", help="Like '*/triton'.")]
Into = Annotated[str | None, typer.Option("--into", metavar="FILE", help="Merge the runs of all files into this one.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Cells to show.")]


def history(
    context: typer.Context,
    files: Files,
    case: CasePattern = "*",
    implementation: Name = "*",
    into: Into = None,
    limit: Limit = 10,
    json: options.Json = None,
) -> None:
    """Show cells over time, those that moved last first; merge the files of several jobs."""
    from ..environment import environment
    from ..records import history as base
    from ..reports.history_report import document, report
    from ..reports.json_report import dumps

    check_target("--json", json)
    screen = console(stderr=json == "-")
    cells = base.cells(files, case=case, implementation=implementation)
    if into is not None:
        new = base.merge(into, files)
        screen.print(f"{new} new run{'' if new == 1 else 's'} in {into}", soft_wrap=True)
    write(json, lambda: dumps(document(["attnoracle", *context.obj], environment(), cells)))
    if into is None:
        report(screen, cells, limit)
    raise typer.Exit(0 if cells else 2)
