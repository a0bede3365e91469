"""The suites: which cases `attnoracle check` runs. Literal tables; a row is one batch, its kind and its options.

``quick``       real head dims, a tensor-parallel slice of heads, reduced top-k, short ragged batches: under a
                minute on two cores, in Triton's interpreter
``full``        every kind and option of every operator, tile edges, several head counts and dtypes, all geometries,
                the reach of ``suite_reach`` (many requests, rows, heads, keys, slots, all of a cache), and every two
                properties together (``suite_pairs``)
``production``  the shapes that engines run, for a GPU: thousands of queries, all heads, top-2048, 65,536 keys

A case's seed is the suite's seed plus its place in the table, so that no two draw the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..fixtures import PATH
from .case import LAYOUTS, Case
from .config import load
from .errors import unknown
from .geometry import Geometry
from .inputs import kinds_of
from .suite_layouts import PRODUCTION, QUICK
from .suite_layouts import full as full_layouts
from .suite_pairs import pair_cases
from .suite_reach import OWN_KINDS, reach_cases
from .suite_row import Row
from .suite_row import ragged as _ragged

#: Dense and masked MHA, two heads: decode, extend, prefill, empty requests, fewer keys than queries, tile edges.
MHA = (
    Row(*_ragged((37, 37), (1, 130), (64, 64))),
    Row(*_ragged((65, 127)), "wide"),
    Row(*_ragged((5, 7), (0, 9), (64, 129)), "offset"),
    Row(*_ragged((16, 9), (12, 40)), "small"),
    Row(*_ragged((33, 97), (3, 0), (1, 1)), "mixed"),
    Row(*_ragged((48, 200)), "needle"),
    Row(*_ragged((40, 128)), "tagged"),
    Row(*_ragged((17, 96), (31, 31)), "grid"),
    Row(*_ragged((63, 63), (2, 65)), "negative"),
    Row(*_ragged((20, 150)), "sinktoken"),
)
DENSE = (
    *MHA,
    Row(*_ragged((24, 70)), "randn", ("noncausal",)),
    Row(*_ragged((9, 128), (5, 33), (2, 100)), "wide", ("noncausal",)),
    Row(*_ragged((40, 12), (20, 5), (3, 60), (7, 30)), "randn", ("noncausal",)),
    Row(*_ragged((140, 300)), "randn", heads=4),
    Row(*_ragged((21, 85), (3, 7)), "randn", dtype="fp16"),
    Row(*_ragged((18, 66)), "small", dtype="fp32"),
    Row(*_ragged((64, 300)), "grid"),
)
MASKED = (
    *(Row(row.q, row.k, row.kind, topk=24) for row in MHA),
    Row(*_ragged((40, 190)), "randn", ("prefix",), 16),
    Row(*_ragged((33, 140)), "wide", ("window",), 16),
    Row(*_ragged((30, 260)), "randn", ("blocks",), 32),
    Row(*_ragged((21, 100), (9, 9)), "randn", ("empty-rows",), 16),
    Row(*_ragged((50, 50)), "offset", ("dense-mask",), 16),
    Row(*_ragged((130, 200), (9, 30)), "randn", ("noncausal",), 24),
    Row(*_ragged((140, 420)), "wide", (), 48),
    Row(*_ragged((24, 70), (9, 40)), "randn", ("noncausal",), 20),
    Row(*_ragged((22, 100), (3, 8)), "randn", (), 24, dtype="fp16"),
    Row(*_ragged((17, 65)), "small", (), 24, dtype="fp32"),
)
#: Sparse MQA, one block of heads: each index pattern once, lengths and sink, top-k beside tile edges.
SPARSE = (
    Row(*_ragged((4, 300), (1, 40), (3, 64)), "randn", (), 64),
    Row(*_ragged((6, 200)), "wide", ("leading",), 96),
    Row(*_ragged((5, 150), (2, 30)), "needle", ("interleaved",), 64),
    Row(*_ragged((7, 90)), "offset", ("trailing",), 48),
    Row(*_ragged((6, 128)), "randn", ("invalid",), 65),
    Row(*_ragged((4, 100), (3, 20)), "randn", ("duplicates",), 64),
    Row(*_ragged((8, 70)), "small", ("empty-rows",), 63),
    Row(*_ragged((5, 250)), "randn", ("lengths",), 80),
    Row(*_ragged((6, 170)), "randn", ("interleaved", "lengths"), 72),
    Row(*_ragged((4, 140), (3, 60)), "wide", ("leading", "lengths"), 96),
    Row(*_ragged((3, 99), (4, 160)), "randn", ("sink",), 64),
    Row(*_ragged((4, 180)), "tagged", ("lengths", "sink"), 33),
    Row(*_ragged((2, 64), (2, 64)), "grid", ("prefix",), 64),
    Row(*_ragged((6, 220)), "negative", ("window",), 32),
    Row(*_ragged((5, 110)), "sinktoken", (), 1),
    Row(*_ragged((20, 160)), "wide", ("sink",), 130, 32),
    Row(*_ragged((4, 120), (2, 1)), "small", ("duplicates", "sink"), 40, 12),
    Row(*_ragged((1, 75), (1, 3), (1, 240)), "mixed", ("highrows",), 64),
    Row(*_ragged((5, 80), (2, 33)), "randn", ("row0",), 32, 12),
    Row(*_ragged((5, 200)), "small", ("trailing",), 96, dtype="fp16"),
    Row(*_ragged((4, 70)), "wide", (), 40, dtype="fp32"),
)
INDEXER = (
    Row(*_ragged((12, 100), (4, 33))),
    Row(*_ragged((1, 129), (1, 64), (1, 1)), "wide"),
    Row(*_ragged((16, 63)), "clustered"),
    Row(*_ragged((9, 70), (7, 7)), "grid"),
    Row(*_ragged((8, 90)), "pow2"),
    Row(*_ragged((6, 150), (5, 80), (9, 40)), "randn", ("backwards",)),
    Row(*_ragged((9, 4), (36, 60)), "randn", heads=32),
)
#: Sparse MQA on quantised caches: rows and pages of fp8_ds_mla, and plain e4m3 with a scale each for q and the cache.
SPARSE_FP8 = (
    Row(*_ragged((4, 200), (2, 40)), "randn", ("ds-mla",), 64),
    Row(*_ragged((3, 150), (1, 64), (1, 65)), "needle", ("ds-mla", "lengths", "pages", "pow2-scales"), 48),
    Row(*_ragged((4, 120)), "randn", ("ds-mla", "invalid", "wide-scales"), 65, 12),
    Row(*_ragged((3, 90), (2, 63)), "small", ("ds-mla", "empty-rows", "pages", "sink", "zero-tiles"), 33),
    Row(*_ragged((4, 180), (2, 30)), "randn", (), 64, dtype="e4m3"),
    Row(*_ragged((3, 130), (2, 70)), "wide", ("lengths", "pages", "sink"), 40, dtype="e4m3"),
    Row(*_ragged((4, 100)), "tagged", ("interleaved", "pages"), 33, 12, dtype="e4m3"),
)
#: fp8 alone: scales of the queries apart, compressed scores, the ends of the format, blocks of zeros.
INDEXER_FP8 = (
    Row(*_ragged((7, 60), (5, 90)), "randn", ("q-scale",)),
    Row(*_ragged((6, 50), (4, 130), (1, 64)), "randn", ("compressed",)),
    Row(*_ragged((5, 77), (9, 40)), "wide", ("compressed", "q-scale")),
    Row(*_ragged((6, 70), (3, 40)), "randn", ("backwards", "compressed")),
    Row(*_ragged((6, 66)), "saturated"),
    Row(*_ragged((5, 80), (3, 30)), "zerokeys", ("q-scale",)),
)
#: Paged decode: next_n 1 to 4; contexts of 0, 1, a page and one more or less, and fewer keys than queries.
PAGED = (
    Row(*_ragged((1, 63), (1, 64), (1, 65), (1, 0), (1, 1)), dtype="e4m3"),
    Row(*_ragged((2, 130), (2, 1), (2, 64)), "wide", ("q-scale",), dtype="e4m3"),
    Row(*_ragged((3, 127), (3, 2), (3, 200)), "zerokeys", dtype="e4m3"),
    Row(*_ragged((4, 129), (4, 3), (4, 128)), "grid", dtype="e4m3"),
    Row(*_ragged((1, 90), (1, 191), (1, 30), (1, 192)), "clustered", heads=32, dtype="e4m3"),
    Row(*_ragged((4, 70), (4, 193)), "saturated", ("q-scale",), dtype="e4m3"),
    Row(*_ragged((2, 100), (2, 63)), "negative", heads=64, dtype="e4m3"),
    Row(*_ragged((3, 66), (3, 0), (3, 31)), "pow2", ("poison-nan",), dtype="e4m3"),
)
SELECT = (
    Row(*_ragged((6, 500), (2, 40)), "randn", (), 64),
    Row(*_ragged((5, 300)), "ties", (), 33),
    Row(*_ragged((4, 700)), "clustered", (), 128),
    Row(*_ragged((3, 257), (3, 64)), "ramp", (), 65),
    Row(*_ragged((6, 450)), "zeros", (), 256),
    Row(*_ragged((5, 130), (1, 300)), "infs", (), 50),
    Row(*_ragged((7, 210)), "negative", (), 17),
    Row(*_ragged((4, 333)), "nan", (), 31),
    Row(*_ragged((5, 97), (5, 99), (3, 140)), "randn", (), 98),
    Row(*_ragged((4, 160), (5, 90), (3, 220)), "randn", ("backwards",), 40),
    Row(*_ragged((9, 4), (20, 90)), "randn", (), 1),
    Row(*_ragged((24, 1300)), "randn", (), 600),
)
MERGE = (
    Row(*_ragged((33, 33)), "randn"),
    Row(*_ragged((7, 7), (20, 20)), "wide"),
    Row(*_ragged((41, 41)), "empties"),
    Row(*_ragged((70, 70)), "randn", heads=8, dtype="fp32"),
    Row(*_ragged((5, 5)), "wide", dtype="fp16"),
    Row(*_ragged((19, 19)), "wide", dtype="fp32"),
    Row(*_ragged((23, 23)), "empties", dtype="fp16"),
)
TABLE: dict[str, tuple[tuple[Row, ...], int]] = {
    "dense_mha": (DENSE, 2),
    "masked_mha": (MASKED, 2),
    "sparse_mqa": (SPARSE, 16),
    "indexer_scores": (INDEXER, 8),
    "topk_select": (SELECT, 1),
    "merge_lse": (MERGE, 4),
}
#: Operators whose cases on GLM-5.3-Flash would be those on GLM-5, number by number: keys are as wide in all, rotated or
#: not, values too, and the scale is the same.
TWINS = ("dense_mha", "masked_mha", "merge_lse")
INDEXED = ("indexer_scores", "paged_indexer_scores", "topk_select")


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
    tables = {} if name == "production" else {operator: _cut(rows, dims) for operator, (rows, _) in TABLE.items()}
    found: list[Case] = []
    for operator, rows in tables.items():
        if operator not in INDEXED or dims.index_head_dim is not None:
            heads = TABLE[operator][1]
            found += _cases(geometry, operator, rows, heads, seed)
    if name == "full":
        for operator, rows in _every(geometry).items():
            if operator not in INDEXED or dims.index_head_dim is not None:
                found += _cases(geometry, operator, rows, 0, seed + 1000)
    return tuple(found)


def _cut(rows: tuple[Row, ...], dims: Geometry) -> tuple[Row, ...]:
    """Without the kind that has no power where keys have no rotated part (see ``_every``)."""
    return rows if dims.qk_rope_head_dim else tuple(row for row in rows if row.kind != "offset")


def _cases(geometry: str, operator: str, rows: tuple[Row, ...], heads: int, seed: int) -> Iterator[Case]:
    for place, row in enumerate(rows):
        yield Case(
            operator=operator,
            geometry=geometry,
            heads=row.heads or heads,
            q_lens=row.q,
            k_lens=row.k,
            topk=row.topk,
            dtype=row.dtype,
            kind=row.kind,
            layout=LAYOUTS[place % len(LAYOUTS)],
            options=tuple(sorted(row.options)),
            seed=seed + place,
        )


def _quick(seed: int) -> Iterator[Case]:
    for geometry in ("deepseek-v3.2", "glm-5"):
        for operator, (rows, heads) in TABLE.items():
            yield from _cases(geometry, operator, rows, heads, seed)
    # The NoPE model differs in the attention operators alone: cache rows of 512, no rotated part.
    yield from _cases("glm-5.3-flash", "sparse_mqa", (*SPARSE[:3], SPARSE[4]), 16, seed + 100)
    yield from _cases("glm-5.3-flash", "dense_mha", DENSE[:2], 2, seed + 100)
    fp8 = tuple(replace(row, options=(), heads=0, dtype="e4m3") for row in INDEXER)
    fp8 += tuple(replace(row, dtype="e4m3") for row in INDEXER_FP8)
    yield from _cases("glm-5.2", "indexer_scores", fp8, 8, seed + 100)
    yield from _cases("deepseek-v3.2", "paged_indexer_scores", PAGED, 8, seed + 100)
    yield from _cases("glm-5.2", "sparse_mqa", SPARSE[4:8], 1, seed + 200)
    yield from _cases("deepseek-v3.2", "sparse_mqa", SPARSE_FP8, 16, seed + 300)
    for operator, rows in QUICK.items():
        yield from _cases("deepseek-v3.2", operator, rows, 1, seed + 300)
    # Rows without rotated dims: 528 bytes.
    yield from _cases("glm-5.3-flash", "write_cache", QUICK["write_cache"][2:3], 1, seed + 400)
    yield from _cases("glm-5.3-flash", "gather", QUICK["gather"][2:3], 1, seed + 400)


def _full(seed: int) -> Iterator[Case]:
    yield from _quick(seed)
    for geometry in ("deepseek-v3.2", "glm-5", "glm-5.3-flash"):
        for operator, rows in _every(geometry).items():
            if geometry != "glm-5.3-flash" or operator not in TWINS:
                yield from _cases(geometry, operator, rows, 0, seed + 1000)
    for geometry in ("deepseek-v3.2", "glm-5.3-flash"):
        for operator, rows in full_layouts(indexer=geometry == "deepseek-v3.2").items():
            yield from _cases(geometry, operator, rows, 1, seed + 2000)
    yield from reach_cases(seed + 3000)
    yield from pair_cases(seed + 4000)


def _kinds(operator: str) -> tuple[str, ...]:
    """The kinds that are tried at every edge; the others have rows in ``suite_reach``."""
    return tuple(kind for kind in kinds_of(operator) if kind not in OWN_KINDS.get(operator, ()))


def _every(geometry: str) -> dict[str, tuple[Row, ...]]:
    """Every kind of every operator at tile edges, several head counts and dtypes."""
    edges = _ragged((127, 127), (1, 255), (0, 3), (64, 321), (128, 129), (1, 1))
    rows: dict[str, tuple[Row, ...]] = {
        "dense_mha": tuple(Row(*edges, kind, heads=4) for kind in _kinds("dense_mha")),
        "masked_mha": tuple(Row(*edges, kind, topk=100, heads=4) for kind in _kinds("masked_mha")),
        "sparse_mqa": tuple(
            Row(*_ragged((9, 700), (1, 513), (4, 129)), kind, (), topk, heads)
            for kind in _kinds("sparse_mqa")
            for topk, heads in ((128, 64), (257, 8), (512, 128))
            # Keys are the values' own rows: those of kind ``offset`` are so alike that many of them, or those without
            # rotated dims, average to one answer for every head.
            if kind != "offset" or (topk == 128 and geometry != "glm-5.3-flash")
        ),
        "merge_lse": tuple(Row(*_ragged((129, 129)), kind, heads=16) for kind in _kinds("merge_lse")),
    }
    for number, kind in enumerate(_kinds("sparse_mqa")):
        if kind in ("offset", "constant"):
            continue  # rows of one page so alike, or of one level, that e4m3 makes them one
        scales = ("pow2-scales", "wide-scales", "zero-tiles")[number % 3]
        batch = _ragged((5, 400), (1, 129), (1, 64))
        rows["sparse_mqa"] += (
            Row(*batch, kind, tuple(sorted(("ds-mla", "pages", scales))), 128, (64, 16)[number % 2]),
        )
        if kind != "small":  # where weights are nearly uniform, those in e4m3 cannot be told from their mean
            rows["sparse_mqa"] += (Row(*batch, kind, ("highrows",), 100, (16, 64)[number % 2], "e4m3"),)
    for dtype in ("fp16", "fp32"):
        rows["dense_mha"] += (Row(*edges, "randn", heads=2, dtype=dtype), Row(*edges, "small", heads=2, dtype=dtype))
        rows["sparse_mqa"] += (Row(*_ragged((7, 300)), "randn", (), 130, 16, dtype),)
    if geometry != "glm-5.3-flash":
        rows["indexer_scores"] = tuple(
            Row(*_ragged((33, 400), (1, 257), (4, 64)), kind, heads=heads, dtype=dtype)
            for kind in _kinds("indexer_scores")
            for heads, dtype in ((32, "bf16"), (64, "e4m3"))
        )
        rows["paged_indexer_scores"] = tuple(
            Row(*_ragged((m, 400), (m, 0), (m, 257), (m, 64), (m, 1)), kind, options, heads=heads, dtype="e4m3")
            for kind in _kinds("paged_indexer_scores")
            for m, options, heads in ((1, (), 64), (4, ("q-scale",), 32))
        )
        rows["topk_select"] = tuple(
            Row(*_ragged((9, 3000), (3, 600)), kind, (), topk, 1)
            for kind in _kinds("topk_select")
            for topk in (512, 777)
        )
    return rows


def _production(seed: int) -> Iterator[Case]:
    yield from _cases("deepseek-v3.2", "sparse_mqa", (Row((4096,), (65536,), "randn", (), 2048, 128),), 0, seed)
    yield from _cases("glm-5.2", "sparse_mqa", (Row((4096,), (65536,), "needle", (), 2048, 16),), 0, seed + 1)
    yield from _cases("glm-5", "sparse_mqa", (Row((4096,), (8192,), "wide", ("lengths",), 2048, 64),), 0, seed + 2)
    for geometry, heads in (("deepseek-v3.2", 16), ("glm-5", 8)):
        yield from _cases(geometry, "dense_mha", (Row((8192,), (8192,), heads=heads),), 0, seed + 3)
        yield from _cases(geometry, "dense_mha", (Row((1024,), (9216,), "wide", heads=heads),), 0, seed + 4)
        yield from _cases(geometry, "masked_mha", (Row((8192,), (8192,), "randn", (), 2048, heads),), 0, seed + 5)
    yield from _cases("deepseek-v3.2", "indexer_scores", (Row((4096,), (32768,), heads=64, dtype="e4m3"),), 0, seed + 6)
    yield from _cases("glm-5.2", "indexer_scores", (Row((2048,), (8192,), heads=32, dtype="bf16"),), 0, seed + 7)
    paged = Row((4,) * 128, (8192,) * 128, "randn", ("ds-mla", "pages", "pow2-scales"), 2048, 128)
    yield from _cases("deepseek-v3.2", "sparse_mqa", (paged,), 0, seed + 12)
    plain = Row((1,) * 256, (4096,) * 256, "wide", (), 2048, 64, "e4m3")
    yield from _cases("glm-5.2", "sparse_mqa", (plain,), 0, seed + 13)
    compressed = Row(*_ragged((2048, 16384), (2048, 4096)), "randn", ("compressed", "q-scale"), heads=64, dtype="e4m3")
    yield from _cases("deepseek-v3.2", "indexer_scores", (compressed,), 0, seed + 10)
    decode = Row((2,) * 128, tuple(range(8192, 8192 + 128 * 64, 64)), heads=64, dtype="e4m3")
    yield from _cases("deepseek-v3.2", "paged_indexer_scores", (decode,), 0, seed + 11)
    for kind in ("randn", "clustered", "zeros", "ties"):
        yield from _cases("deepseek-v3.2", "topk_select", (Row((4096,), (32768,), kind, (), 2048, 1),), 0, seed + 8)
    yield from _cases("deepseek-v3.2", "merge_lse", (Row((4096,), (4096,), "wide", heads=128),), 0, seed + 9)
    for operator, rows in PRODUCTION.items():
        yield from _cases("deepseek-v3.2", operator, rows, 1, seed + 20)


SUITES: dict[str, Callable[[int], Iterator[Case]]] = {"quick": _quick, "full": _full, "production": _production}
