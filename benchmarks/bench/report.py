"""What people read of a run, and its CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...oracle.case import Case
from ...oracle.reports.plain import line, plural
from ...oracle.routes.grammar import length_text
from .ceilings import Ceilings
from .measure import Result
from .ratios import is_ours
from .timing import Timing

_CSV = (
    "case", "operator", "geometry", "heads", "queries", "keys", "topk", "dtype", "pattern", "implementation", "status",
    "median_ms", "low_ms", "high_ms", "calls", "host_ms", "host_work", "tflops", "tbytes_per_second", "prepare_seconds",
    "reason",
)  # fmt: skip


def print_report(console: Console, results: Sequence[Result], ceilings: Ceilings, *, measured_on: str) -> None:
    """One block a shape: medians with spread, rates, and each against the fastest that is not ours."""
    products = ", ".join(
        f"{name} product {figures(rate / 1e12)} TFLOP/s" for name, rate in ceilings.product_flops.items()
    )
    console.print(Text(measured_on, "bold"))
    console.print(f"ceilings of this run: copy {figures(ceilings.copy_bytes / 1e12)} TB/s; {products}")
    for case, shape in groupby(results, key=lambda result: result.case):
        console.print()
        console.print(Text(title(case), "bold"))
        _print_shape(console, list(shape))


def title(case: Case) -> str:
    """A shape in words."""
    parts = [f"{case.operator} {case.geometry}", plural(case.heads, "head"), f"{length_text(case.queries)} queries"]
    parts.append(f"{length_text(case.keys)} keys")
    if len(case.q_lens) > 1:
        parts.append(f"{len(case.q_lens)} requests")
    if case.topk:
        parts.append(f"top-{case.topk}")
    return ", ".join([*parts, case.dtype, *case.options])


def _print_shape(console: Console, results: Sequence[Result]) -> None:
    peers = [r.timing.median for r in results if r.timing is not None and not is_ours(r.implementation)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("implementation", no_wrap=True)
    host = any(result.timing is not None and result.timing.host_work for result in results)
    for heading in ("median", "spread", *(["host"] if host else []), "TFLOP/s", "TB/s", "x best peer"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        if result.timing is None:
            continue
        backend = result.implementation.partition("/")[2]
        ratio = f"{min(peers) / result.timing.median:.2f}" if peers else "-"
        table.add_row(
            Text(line(backend), "bold" if is_ours(result.implementation) else ""),
            milliseconds(result.timing.median),
            f"{100 * result.timing.spread:.1f}%",
            *([_host(result.timing)] if host else []),
            "-" if result.flops is None else figures(result.flops / 1e12),
            "-" if result.bytes is None else figures(result.bytes / 1e12),
            ratio,
        )
    if table.rows:
        console.print(table)
    _print_notes(console, [result for result in results if result.timing is not None])
    for result in results:
        if result.timing is None:
            style = "bold red" if result.status == "refused" else "dim"
            backend = result.implementation.partition("/")[2]
            console.print(Text(f"  {line(backend)} {result.status}: {line(result.reason)}", style))


def _host(timing: Timing) -> Text:
    """The host's time of a call, with a mark where it is the longer one; its column stays aligned."""
    seconds = "-" if timing.host_seconds is None else milliseconds(timing.host_seconds)
    return Text(seconds + ("*" if timing.host_bound else " "))


def _print_notes(console: Console, timed: Sequence[Result]) -> None:
    """What the figures of the host mean where they are not hidden, or longer than the device's."""
    if any(result.timing.host_bound for result in timed if result.timing):
        console.print(Text("  * host bound: calls in a row take as long as the host does", "dim"))
    for result in timed:
        assert result.timing is not None
        backend, work = line(result.implementation.partition("/")[2]), result.timing.host_work
        if work == "waits":
            console.print(Text(f"  {backend} waits for the device: its median has its host work in it", "dim"))
        if work == "exposed":
            console.print(Text(f"  {backend}: the host was too slow to hide, its median has some of that in it", "dim"))


def figures(value: float) -> str:
    """Three of them, and all of a whole number beyond: 0.512, 65.5, 1,151."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def milliseconds(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} us"


def as_csv(results: Sequence[Result]) -> str:
    """One line a result, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for result in results:
        case, timing = result.case, result.timing
        times = [1e3 * timing.median, 1e3 * timing.low, 1e3 * timing.high, timing.calls] if timing else [""] * 4
        host = [] if timing is None or timing.host_seconds is None else [1e3 * timing.host_seconds, timing.host_work]
        rates = ["" if rate is None else rate / 1e12 for rate in (result.flops, result.bytes)]
        writer.writerow([
            case.id, case.operator, case.geometry, case.heads, case.queries, case.keys, case.topk, case.dtype,
            "+".join(case.options), result.implementation, result.status, *times, *(host or ["", ""]), *rates,
            result.prepare_seconds, line(result.reason),
        ])  # fmt: skip
    return text.getvalue()
