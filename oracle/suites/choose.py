"""The suites by name, their batches on any one geometry, and the cases that once failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...fixtures import PATH
from ..case import Case
from ..config import load
from ..errors import unknown
from ..geometry import Geometry
from .full import at_edges, full
from .pairs import pair_cases
from .production import production
from .quick import TABLE, quick
from .reach import reach_cases
from .row import Row, cases

SUITES: dict[str, Callable[[int], Iterator[Case]]] = {"quick": quick, "full": full, "production": production}
#: Operators that a geometry without an indexer has no cases of.
INDEXED = ("indexer_scores", "paged_indexer_scores", "topk_select", "write_index", "gather_index")


def suite(name: str, seed: int = 0) -> tuple[Case, ...]:
    """The cases of a suite in a fixed order. Raises BadInput for an unknown name."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return tuple(SUITES[name](seed))


def fixture_cases() -> tuple[Case, ...]:
    """Every case that once failed, from ``fixtures/cases``: one id a line, ``#`` starts a comment."""
    found = []
    for path in sorted((PATH / "cases").glob("*.txt")):
        for line in path.read_text().splitlines():
            text = line.partition("#")[0].strip()
            if text:
                found.append(Case.parse(text))
    return tuple(found)


def geometry_cases(name: str, geometry: str, seed: int = 0) -> tuple[Case, ...]:
    """The batches of ``quick`` or ``full`` on any one geometry; those of ``production`` are made for their models."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    dims = load(geometry)
    found: list[Case] = []
    if name != "production":
        for operator, (rows, heads) in TABLE.items():
            found += cases(geometry, operator, _cut(rows, dims), heads, seed)
    if name == "full":
        for operator, rows in at_edges(geometry).items():
            found += cases(geometry, operator, rows, 0, seed + 1000)
        found += [replace(case, geometry=geometry) for case in (*reach_cases(seed + 3000), *pair_cases(seed + 4000))]
    return tuple(case for case in found if case.operator not in INDEXED or dims.index_head_dim is not None)


def _cut(rows: tuple[Row, ...], dims: Geometry) -> tuple[Row, ...]:
    """Without the kind that has no power where keys have no rotated part (see ``at_edges``)."""
    return rows if dims.qk_rope_head_dim else tuple(row for row in rows if row.kind != "offset")
