"""The crossovers for people: a block a tensor-parallel size, and a picture of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ...oracle.geometry import Geometry
from ...oracle.reports.plain import line, plural
from ...oracle.reports.route_picture import require_matplotlib
from ...oracle.routes.grammar import length_text
from . import borrowed
from .crossover import Row
from .point import Point
from .report import milliseconds

_COLOURS = ("#1b7837", "#2166ac", "#b2182b", "#762a83")
_WINS = {"MHA": "  MHA", "MQA": "", "noise": "  too close to call"}


def print_crossover(console: Console, geometry: Geometry, rows: Sequence[Row]) -> None:
    """Where masked MHA wins, what it is against sparse MQA at each length, and what a B200's table would cost."""
    console.print(Text(f"{line(geometry.name)}: masked MHA against sparse MQA, projections included", "bold"))
    for row in rows:
        pure = f"up to {length_text(row.pure)}" if row.pure else "never"
        pure += f" from {length_text(row.least)} on" if row.least else ""
        cached = ", ".join(f"{length_text(q)} new up to {length_text(seq)}" for seq, q in row.context) or "never"
        console.print(
            f"TP {row.tensor_parallel}, {plural(row.heads, 'head')}: fresh prompts {pure}; with context {cached}"
        )
        for point in row.points:
            ratio = point.mqa.median / point.mha.median
            times = f"{milliseconds(point.mha.median):>10} {milliseconds(point.mqa.median):>10}"
            console.print(f"  {_shape(point):>10} {times}  x{ratio:.2f}{_WINS[point.outcome]}")
        published = borrowed.PUBLISHED.get(row.tensor_parallel)
        if published and geometry.name == "glm-5.2":
            console.print(f"  another machine, a B200 (vllm#53785): up to {length_text(published)}")
        for cost in borrowed.costs(geometry, row.tensor_parallel, row.points):
            new = "" if cost.query == cost.seq else f"{length_text(cost.query)} new of "
            console.print(
                f"  {borrowed.RULES}'s table, of a B200, takes {cost.borrowed} at {new}{length_text(cost.seq)}: "
                f"{cost.slower:.0%} longer"
            )


def draw(geometry: Geometry, rows: Sequence[Row], machine: str, path: Path) -> None:
    """Time of sparse MQA over that of masked MHA by length, one line a tensor-parallel size; above 1 MHA wins.

    Left fresh prompts, right 4,096 and 8,192 new tokens with cached context. Raises Unsupported without matplotlib.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((10.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for row, colour in zip(rows, _COLOURS, strict=False):
        label = f"TP {row.tensor_parallel}, {plural(row.heads, 'head')}"
        _line(left, [p for p in row.points if p.query == p.seq], colour, "-", label)
        for query, style in ((4096, "-"), (8192, "--")):
            chosen = [p for p in row.points if p.query == query and p.seq > query]
            _line(right, chosen, colour, style, f"TP {row.tensor_parallel}, {length_text(query)} new")
        for seq, _ in borrowed.limits(geometry, row.tensor_parallel)[:1]:
            left.axvline(seq, color=colour, linestyle=":", linewidth=0.9)
    for axis, title in ((left, "fresh prompts (dotted: where vLLM's B200 table ends)"), (right, "with cached context")):
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda x, _: length_text(int(x)))
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlabel("tokens of the sequence", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    left.set_ylabel("sparse MQA time / masked MHA time", fontsize=8)
    figure.suptitle(f"{geometry.name}: where masked MHA stops winning, on {machine}", fontsize=10)
    figure.savefig(path, dpi=150)


def _line(axis: object, points: Sequence[Point], colour: str, style: str, label: str) -> None:
    if points:
        lengths, ratios = [p.seq for p in points], [p.mqa.median / p.mha.median for p in points]
        axis.plot(lengths, ratios, style, marker=".", color=colour, label=label)  # type: ignore[attr-defined]


def _shape(point: Point) -> str:
    return f"q{length_text(point.query)}" + (f"s{length_text(point.seq)}" if point.seq > point.query else "")
