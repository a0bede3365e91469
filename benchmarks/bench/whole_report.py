"""Whole routes and decode steps for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...oracle.reports.plain import line, plural
from .decode import Decoding
from .report import milliseconds
from .stages import ORDER
from .whole import Whole, saved


def print_whole(console: Console, geometry: str, found: Sequence[Whole], where: str) -> None:
    """A block a prompt: one column a route, one line a stage; then what the skip of the indexer saves."""
    console.print(Text(f"{line(geometry)}: whole routes, from hidden states to o_proj, on {where}", "bold"))
    for _, group in groupby(found, key=lambda one: (one.batch, one.tensor_parallel)):
        block = list(group)
        timed = [one for one in block if one.total is not None]
        first = block[0]
        console.print()
        console.print(Text(f"{first.batch}, TP {first.tensor_parallel}, {plural(first.heads, 'head')}", "bold"))
        if timed:
            console.print(_table(timed))
        won = saved(block)
        if won is not None and timed:
            whole = next(one.total.median for one in timed if one.route == "dense_mha" and one.total)
            console.print(f"  skipping the indexer saves {milliseconds(won)}, {won / whole:.0%} of the dense route")
        for one in block:
            if one.note:
                console.print(Text(f"  {one.route}: {line(one.note)}", "dim"))


def _table(timed: Sequence[Whole]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage", no_wrap=True)
    best = min(one.total.median for one in timed if one.total)
    for one in timed:
        table.add_column(one.route, justify="right")
    for stage in sorted({name for one in timed for name in one.stages}, key=ORDER.index):
        table.add_row(stage, *(milliseconds(one.stages[stage].median) if stage in one.stages else "-" for one in timed))
    totals = [one.total.median for one in timed if one.total]
    table.add_row("in a row", *(Text(milliseconds(x), "bold" if x == best else "") for x in totals))
    return table


def print_decode(console: Console, geometry: str, size: int, found: Sequence[Decoding], where: str) -> None:
    """A row a number of requests: a step with the skip allowed, without, their ratio, and the host's part of each."""
    console.print(Text(f"{line(geometry)}, TP {size}: one layer's decode step, a graph a step, on {where}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", justify="right", no_wrap=True)
    for heading in ("may skip", "may not", "ratio", "spread", "host, may skip", "host, may not"):
        table.add_column(heading, justify="right")
    for one in found:
        wide = max(one.with_skip.spread, one.without.spread)
        times = [milliseconds(timing.median) for timing in (one.with_skip, one.without)]
        hosts = [milliseconds(seconds) for seconds in (one.host_with_skip, one.host_without)]
        table.add_row(plural(one.requests, "request"), *times, f"{one.ratio:.3f}", f"{wide:.1%}", *hosts)
    console.print(table)
    for one in found:
        same = f"both layers captured the same {one.operations} operations"
        if not one.same_operations:
            same = "the two layers captured different operations"
        console.print(Text(f"  {plural(one.requests, 'request')}, {one.steps} steps each: {same}", "dim"))
