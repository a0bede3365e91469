"""Cells over time, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.history import MOVED, Cell, Point
from .json_report import document as wrapped
from .plain import duration, line, plural
from .table import STYLES

#: Runs shown of one cell: the last ones.
_RUNS = 12


def report(console: Console, cells: Sequence[Cell], limit: int) -> None:
    """A table for each cell that moved, or for the first ones where none did."""
    moved = [cell for cell in cells if cell.moves]
    shown = (moved or list(cells))[:limit]
    for cell in shown:
        console.print(Text.assemble((line(cell.implementation), "bold"), f"  {line(cell.case)}"), soft_wrap=True)
        console.print(_table(cell))
        console.print()
    runs = len({(point.date, point.commit) for cell in cells for point in cell.points})
    told = f"{plural(len(cells), 'cell')} over {plural(runs, 'run')}: {len(moved)} moved"
    console.print(f"{told} (status, or ratio by more than {MOVED:g} times); {len(shown)} shown")


def _table(cell: Cell) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    for heading in ("date", "commit", "status"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ratio", "time", "moved"):
        table.add_column(heading, justify="right", no_wrap=True)
    before: Point | None = None
    ends = {id(b): a for a, b in cell.moves}
    for point in cell.points[-_RUNS:]:
        move = ends.get(id(point))
        table.add_row(
            point.date[:16].replace("T", " "),
            (point.commit or "-")[:10],
            Text(point.status, STYLES.get(point.status, "")),  # type: ignore[call-overload]
            "-" if point.ratio is None else f"{point.ratio:.3g}",
            duration(point.seconds),
            Text(_move(move, point), "bold") if move is not None else "",
        )
        before = point
    assert before is not None
    return table


def _move(a: Point, b: Point) -> str:
    if a.status != b.status or not a.ratio or not b.ratio:
        return f"was {a.status}"
    return f"x{b.ratio / a.ratio:.2f}"


def document(command: Sequence[str], environment: dict[str, Any], cells: Sequence[Cell]) -> dict[str, Any]:
    """``attnoracle.history``, version 1."""
    records = [
        {
            "case": cell.case,
            "implementation": cell.implementation,
            "moves": len(cell.moves),
            "points": [
                {name: getattr(point, name) for name in ("date", "commit", "device", "status", "ratio", "seconds")}
                for point in cell.points
            ],
        }
        for cell in cells
    ]
    summary = {"cells": len(cells), "moved": sum(bool(cell.moves) for cell in cells)}
    return wrapped("history", command, environment, summary, cells=records)
