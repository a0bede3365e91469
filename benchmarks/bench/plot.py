"""A bar chart of a run; the only module here that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ...oracle.reports.route_picture import require_matplotlib
from .measure import Result
from .ratios import is_ours
from .report import figures, milliseconds, title

_OURS, _PEER = "#1b7837", "#9e9e9e"


def draw(results: Sequence[Result], heading: str, path: Path) -> None:
    """One group of bars a shape, in TFLOP/s (TB/s where there are none); bars show the quartiles. Raises Unsupported
    without matplotlib."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shapes = [(case, [r for r in shape if r.timing]) for case, shape in groupby(results, key=lambda r: r.case)]
    shapes = [(case, timed) for case, timed in shapes if timed]
    bars = sum(len(timed) for _, timed in shapes)
    figure = Figure((9.0, 1.3 + 0.26 * bars + 0.5 * len(shapes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shapes) or 1, 1, squeeze=False)[:, 0]
    for axis, (case, timed) in zip(axes, shapes, strict=False):
        rates = [(r.flops or r.bytes or 0.0) / 1e12 for r in timed]
        names = [r.implementation.partition("/")[2] for r in timed]
        colours = [_OURS if is_ours(r.implementation) else _PEER for r in timed]
        axis.barh(names, rates, color=colours)
        for place, (rate, result) in enumerate(zip(rates, timed, strict=True)):
            assert result.timing is not None
            axis.annotate(
                f"{figures(rate)}   {milliseconds(result.timing.median)}", (rate, place), (4, 0),
                textcoords="offset points", va="center", fontsize=7,
            )  # fmt: skip
        axis.invert_yaxis()
        axis.set_xlim(0, 1.25 * max(rates) or 1)
        axis.set_title(title(case), fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
        axis.set_xlabel("TFLOP/s of useful work" if timed[0].flops else "TB/s", fontsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.suptitle(heading, fontsize=9)
    figure.savefig(path, dpi=150)
