"""The route map as a PNG; the only module that needs matplotlib, and only when a picture is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import Unsupported
from ..routes.behaviour import LETTERS
from ..routes.sweep import RouteMap

_COLOURS = {
    ".": "#d9d9d9",
    "D": "#1b9e77",
    "d": "#a6dba0",
    "M": "#2c7fb8",
    "Q": "#fec44f",
    "!": "#d7301f",
    " ": "#ffffff",
}
_INCH_PER_CELL = 0.27


def require_matplotlib() -> Any:
    """The module. Raises Unsupported naming the extra to install."""
    try:
        import matplotlib
    except ImportError:
        raise Unsupported(
            "--png: expected matplotlib, found none; pip install 'attnoracle[plot]', or leave --png out"
        ) from None
    return matplotlib


def draw(found: RouteMap, title: str, path: Path) -> None:
    """Write the map to a PNG file: one square a cell, labelled with its exact lengths."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    letters = list(LETTERS)
    cells = [[letters.index(letter) for letter in row] for row in found.rows]
    columns, rows = len(found.queries), len(found.sequences)
    figure = Figure((_INCH_PER_CELL * columns + 3.0, _INCH_PER_CELL * rows + 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = ListedColormap([_COLOURS[letter] for letter in letters])
    axes.pcolormesh(cells, cmap=colours, vmin=-0.5, vmax=len(letters) - 0.5, edgecolors="white", linewidth=0.7)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_xticks([column + 0.5 for column in range(columns)], [str(each) for each in found.queries], rotation=90)
    labels = ["fresh" if each is None else str(each) for each in found.sequences]
    axes.set_yticks([row + 0.5 for row in range(rows)], labels)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("query length (new tokens)")
    axes.set_ylabel("sequence length (context and new tokens)")
    axes.set_title(title, fontsize=9, wrap=True)
    patches = [Patch(color=_COLOURS[letter], label=LETTERS[letter]) for letter in found.used]
    figure.legend(handles=patches, loc="outside lower center", fontsize=8, frameon=False, ncols=2)
    figure.savefig(path, dpi=150)
