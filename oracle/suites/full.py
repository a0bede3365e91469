"""Suite ``full``: ``quick``, every kind at tile edges, every format, the reach, and every two properties together."""

from __future__ import annotations

from collections.abc import Iterator

from ..case import Case
from ..inputs import kinds_of
from .layouts import full as full_layouts
from .pairs import pair_cases
from .quick import quick
from .reach import OWN_KINDS, reach_cases
from .row import Row, cases, ragged

#: Operators whose cases on GLM-5.3-Flash would be those on GLM-5, number by number: keys are as wide in all, rotated or
#: not, values too, and the scale is the same.
TWINS = ("dense_mha", "masked_mha", "merge_lse")


def full(seed: int) -> Iterator[Case]:
    """The quick suite first, then the others; each part has a thousand seeds to itself."""
    yield from quick(seed)
    for geometry in ("deepseek-v3.2", "glm-5", "glm-5.3-flash"):
        for operator, rows in at_edges(geometry).items():
            if geometry != "glm-5.3-flash" or operator not in TWINS:
                yield from cases(geometry, operator, rows, 0, seed + 1000)
    for geometry in ("deepseek-v3.2", "glm-5.3-flash"):
        for operator, rows in full_layouts(indexer=geometry == "deepseek-v3.2").items():
            yield from cases(geometry, operator, rows, 1, seed + 2000)
    yield from reach_cases(seed + 3000)
    yield from pair_cases(seed + 4000)


def _kinds(operator: str) -> tuple[str, ...]:
    """The kinds that are tried at every edge; the others have rows in ``reach``."""
    return tuple(kind for kind in kinds_of(operator) if kind not in OWN_KINDS.get(operator, ()))


def at_edges(geometry: str) -> dict[str, tuple[Row, ...]]:
    """Every kind of every operator at tile edges, several head counts and dtypes."""
    edges = ragged((127, 127), (1, 255), (0, 3), (64, 321), (128, 129), (1, 1))
    rows: dict[str, tuple[Row, ...]] = {
        "dense_mha": tuple(Row(*edges, kind, heads=4) for kind in _kinds("dense_mha")),
        "masked_mha": tuple(Row(*edges, kind, topk=100, heads=4) for kind in _kinds("masked_mha")),
        "sparse_mqa": tuple(
            Row(*ragged((9, 700), (1, 513), (4, 129)), kind, (), topk, heads)
            for kind in _kinds("sparse_mqa")
            for topk, heads in ((128, 64), (257, 8), (512, 128))
            # Keys are the values' own rows: those of kind ``offset`` are so alike that many of them, or those without
            # rotated dims, average to one answer for every head.
            if kind != "offset" or (topk == 128 and geometry != "glm-5.3-flash")
        ),
        "merge_lse": tuple(Row(*ragged((129, 129)), kind, heads=16) for kind in _kinds("merge_lse")),
    }
    for number, kind in enumerate(_kinds("sparse_mqa")):
        if kind in ("offset", "constant"):
            continue  # rows of one page so alike, or of one level, that e4m3 makes them one
        scales = ("pow2-scales", "wide-scales", "zero-tiles")[number % 3]
        batch = ragged((5, 400), (1, 129), (1, 64))
        rows["sparse_mqa"] += (
            Row(*batch, kind, tuple(sorted(("ds-mla", "pages", scales))), 128, (64, 16)[number % 2]),
        )
        if kind != "small":  # where weights are nearly uniform, those in e4m3 cannot be told from their mean
            rows["sparse_mqa"] += (Row(*batch, kind, ("highrows",), 100, (16, 64)[number % 2], "e4m3"),)
    for dtype in ("fp16", "fp32"):
        rows["dense_mha"] += (Row(*edges, "randn", heads=2, dtype=dtype), Row(*edges, "small", heads=2, dtype=dtype))
        rows["sparse_mqa"] += (Row(*ragged((7, 300)), "randn", (), 130, 16, dtype),)
    if geometry != "glm-5.3-flash":
        rows["indexer_scores"] = tuple(
            Row(*ragged((33, 400), (1, 257), (4, 64)), kind, heads=heads, dtype=dtype)
            for kind in _kinds("indexer_scores")
            for heads, dtype in ((32, "bf16"), (64, "e4m3"))
        )
        rows["paged_indexer_scores"] = tuple(
            Row(*ragged((m, 400), (m, 0), (m, 257), (m, 64), (m, 1)), kind, options, heads=heads, dtype="e4m3")
            for kind in _kinds("paged_indexer_scores")
            for m, options, heads in ((1, (), 64), (4, ("q-scale",), 32))
        )
        rows["topk_select"] = tuple(
            Row(*ragged((9, 3000), (3, 600)), kind, (), topk, 1)
            for kind in _kinds("topk_select")
            for topk in (512, 777)
        )
    return rows
