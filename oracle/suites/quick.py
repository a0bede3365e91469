"""Suite ``quick``: real head dims, a tensor-parallel slice of heads, reduced top-k, short ragged batches.

It runs in the default check, in Triton's interpreter, under a minute on two cores: a row here is paid for by everybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..case import Case
from .layouts import QUICK
from .row import Row, cases, ragged

#: Dense and masked MHA, two heads: decode, extend, prefill, empty requests, fewer keys than queries, tile edges.
MHA = (
    Row(*ragged((37, 37), (1, 130), (64, 64))),
    Row(*ragged((65, 127)), "wide"),
    Row(*ragged((5, 7), (0, 9), (64, 129)), "offset"),
    Row(*ragged((16, 9), (12, 40)), "small"),
    Row(*ragged((33, 97), (3, 0), (1, 1)), "mixed"),
    Row(*ragged((48, 200)), "needle"),
    Row(*ragged((40, 128)), "tagged"),
    Row(*ragged((17, 96), (31, 31)), "grid"),
    Row(*ragged((63, 63), (2, 65)), "negative"),
    Row(*ragged((20, 150)), "sinktoken"),
)
DENSE = (
    *MHA,
    Row(*ragged((24, 70)), "randn", ("noncausal",)),
    Row(*ragged((9, 128), (5, 33), (2, 100)), "wide", ("noncausal",)),
    Row(*ragged((40, 12), (20, 5), (3, 60), (7, 30)), "randn", ("noncausal",)),
    Row(*ragged((140, 300)), "randn", heads=4),
    Row(*ragged((21, 85), (3, 7)), "randn", dtype="fp16"),
    Row(*ragged((18, 66)), "small", dtype="fp32"),
    Row(*ragged((64, 300)), "grid"),
)
MASKED = (
    *(Row(row.q, row.k, row.kind, topk=24) for row in MHA),
    Row(*ragged((40, 190)), "randn", ("prefix",), 16),
    Row(*ragged((33, 140)), "wide", ("window",), 16),
    Row(*ragged((30, 260)), "randn", ("blocks",), 32),
    Row(*ragged((21, 100), (9, 9)), "randn", ("empty-rows",), 16),
    Row(*ragged((50, 50)), "offset", ("dense-mask",), 16),
    Row(*ragged((130, 200), (9, 30)), "randn", ("noncausal",), 24),
    Row(*ragged((140, 420)), "wide", (), 48),
    Row(*ragged((24, 70), (9, 40)), "randn", ("noncausal",), 20),
    Row(*ragged((22, 100), (3, 8)), "randn", (), 24, dtype="fp16"),
    Row(*ragged((17, 65)), "small", (), 24, dtype="fp32"),
)
#: Sparse MQA, one block of heads: each index pattern once, lengths and sink, top-k beside tile edges.
SPARSE = (
    Row(*ragged((4, 300), (1, 40), (3, 64)), "randn", (), 64),
    Row(*ragged((6, 200)), "wide", ("leading",), 96),
    Row(*ragged((5, 150), (2, 30)), "needle", ("interleaved",), 64),
    Row(*ragged((7, 90)), "offset", ("trailing",), 48),
    Row(*ragged((6, 128)), "randn", ("invalid",), 65),
    Row(*ragged((4, 100), (3, 20)), "randn", ("duplicates",), 64),
    Row(*ragged((8, 70)), "small", ("empty-rows",), 63),
    Row(*ragged((5, 250)), "randn", ("lengths",), 80),
    Row(*ragged((6, 170)), "randn", ("interleaved", "lengths"), 72),
    Row(*ragged((4, 140), (3, 60)), "wide", ("leading", "lengths"), 96),
    Row(*ragged((3, 99), (4, 160)), "randn", ("sink",), 64),
    Row(*ragged((4, 180)), "tagged", ("lengths", "sink"), 33),
    Row(*ragged((2, 64), (2, 64)), "grid", ("prefix",), 64),
    Row(*ragged((6, 220)), "negative", ("window",), 32),
    Row(*ragged((5, 110)), "sinktoken", (), 1),
    Row(*ragged((20, 160)), "wide", ("sink",), 130, 32),
    Row(*ragged((4, 120), (2, 1)), "small", ("duplicates", "sink"), 40, 12),
    Row(*ragged((1, 75), (1, 3), (1, 240)), "mixed", ("highrows",), 64),
    Row(*ragged((5, 80), (2, 33)), "randn", ("row0",), 32, 12),
    Row(*ragged((5, 200)), "small", ("trailing",), 96, dtype="fp16"),
    Row(*ragged((4, 70)), "wide", (), 40, dtype="fp32"),
)
INDEXER = (
    Row(*ragged((12, 100), (4, 33))),
    Row(*ragged((1, 129), (1, 64), (1, 1)), "wide"),
    Row(*ragged((16, 63)), "clustered"),
    Row(*ragged((9, 70), (7, 7)), "grid"),
    Row(*ragged((8, 90)), "pow2"),
    Row(*ragged((6, 150), (5, 80), (9, 40)), "randn", ("backwards",)),
    Row(*ragged((9, 4), (36, 60)), "randn", heads=32),
)
#: Sparse MQA on quantised caches: rows and pages of fp8_ds_mla, and plain e4m3 with a scale each for q and the cache.
SPARSE_FP8 = (
    Row(*ragged((4, 200), (2, 40)), "randn", ("ds-mla",), 64),
    Row(*ragged((3, 150), (1, 64), (1, 65)), "needle", ("ds-mla", "lengths", "pages", "pow2-scales"), 48),
    Row(*ragged((4, 120)), "randn", ("ds-mla", "invalid", "wide-scales"), 65, 12),
    Row(*ragged((3, 90), (2, 63)), "small", ("ds-mla", "empty-rows", "pages", "sink", "zero-tiles"), 33),
    Row(*ragged((4, 180), (2, 30)), "randn", (), 64, dtype="e4m3"),
    Row(*ragged((3, 130), (2, 70)), "wide", ("lengths", "pages", "sink"), 40, dtype="e4m3"),
    Row(*ragged((4, 100)), "tagged", ("interleaved", "pages"), 33, 12, dtype="e4m3"),
)
#: fp8 alone: scales of the queries apart, compressed scores, the ends of the format, blocks of zeros.
INDEXER_FP8 = (
    Row(*ragged((7, 60), (5, 90)), "randn", ("q-scale",)),
    Row(*ragged((6, 50), (4, 130), (1, 64)), "randn", ("compressed",)),
    Row(*ragged((5, 77), (9, 40)), "wide", ("compressed", "q-scale")),
    Row(*ragged((6, 70), (3, 40)), "randn", ("backwards", "compressed")),
    Row(*ragged((6, 66)), "saturated"),
    Row(*ragged((5, 80), (3, 30)), "zerokeys", ("q-scale",)),
)
#: Paged decode: next_n 1 to 4; contexts of 0, 1, a page and one more or less, and fewer keys than queries.
PAGED = (
    Row(*ragged((1, 63), (1, 64), (1, 65), (1, 0), (1, 1)), dtype="e4m3"),
    Row(*ragged((2, 130), (2, 1), (2, 64)), "wide", ("q-scale",), dtype="e4m3"),
    Row(*ragged((3, 127), (3, 2), (3, 200)), "zerokeys", dtype="e4m3"),
    Row(*ragged((4, 129), (4, 3), (4, 128)), "grid", dtype="e4m3"),
    Row(*ragged((1, 90), (1, 191), (1, 30), (1, 192)), "clustered", heads=32, dtype="e4m3"),
    Row(*ragged((4, 70), (4, 193)), "saturated", ("q-scale",), dtype="e4m3"),
    Row(*ragged((2, 100), (2, 63)), "negative", heads=64, dtype="e4m3"),
    Row(*ragged((3, 66), (3, 0), (3, 31)), "pow2", ("poison-nan",), dtype="e4m3"),
)
SELECT = (
    Row(*ragged((6, 500), (2, 40)), "randn", (), 64),
    Row(*ragged((5, 300)), "ties", (), 33),
    Row(*ragged((4, 700)), "clustered", (), 128),
    Row(*ragged((3, 257), (3, 64)), "ramp", (), 65),
    Row(*ragged((6, 450)), "zeros", (), 256),
    Row(*ragged((5, 130), (1, 300)), "infs", (), 50),
    Row(*ragged((7, 210)), "negative", (), 17),
    Row(*ragged((4, 333)), "nan", (), 31),
    Row(*ragged((5, 97), (5, 99), (3, 140)), "randn", (), 98),
    Row(*ragged((4, 160), (5, 90), (3, 220)), "randn", ("backwards",), 40),
    Row(*ragged((9, 4), (20, 90)), "randn", (), 1),
    Row(*ragged((24, 1300)), "randn", (), 600),
)
MERGE = (
    Row(*ragged((33, 33)), "randn"),
    Row(*ragged((7, 7), (20, 20)), "wide"),
    Row(*ragged((41, 41)), "empties"),
    Row(*ragged((70, 70)), "randn", heads=8, dtype="fp32"),
    Row(*ragged((5, 5)), "wide", dtype="fp16"),
    Row(*ragged((19, 19)), "wide", dtype="fp32"),
    Row(*ragged((23, 23)), "empties", dtype="fp16"),
)
TABLE: dict[str, tuple[tuple[Row, ...], int]] = {
    "dense_mha": (DENSE, 2),
    "masked_mha": (MASKED, 2),
    "sparse_mqa": (SPARSE, 16),
    "indexer_scores": (INDEXER, 8),
    "topk_select": (SELECT, 1),
    "merge_lse": (MERGE, 4),
}


def quick(seed: int) -> Iterator[Case]:
    """All rows on the geometries that differ in them, in order."""
    for geometry in ("deepseek-v3.2", "glm-5"):
        for operator, (rows, heads) in TABLE.items():
            yield from cases(geometry, operator, rows, heads, seed)
    # The NoPE model differs in the attention operators alone: cache rows of 512, no rotated part.
    yield from cases("glm-5.3-flash", "sparse_mqa", (*SPARSE[:3], SPARSE[4]), 16, seed + 100)
    yield from cases("glm-5.3-flash", "dense_mha", DENSE[:2], 2, seed + 100)
    fp8 = tuple(replace(row, options=(), heads=0, dtype="e4m3") for row in INDEXER)
    fp8 += tuple(replace(row, dtype="e4m3") for row in INDEXER_FP8)
    yield from cases("glm-5.2", "indexer_scores", fp8, 8, seed + 100)
    yield from cases("deepseek-v3.2", "paged_indexer_scores", PAGED, 8, seed + 100)
    yield from cases("glm-5.2", "sparse_mqa", SPARSE[4:8], 1, seed + 200)
    yield from cases("deepseek-v3.2", "sparse_mqa", SPARSE_FP8, 16, seed + 300)
    for operator, rows in QUICK.items():
        yield from cases("deepseek-v3.2", operator, rows, 1, seed + 300)
    # Rows without rotated dims: 528 bytes.
    yield from cases("glm-5.3-flash", "write_cache", QUICK["write_cache"][2:3], 1, seed + 400)
    yield from cases("glm-5.3-flash", "gather", QUICK["gather"][2:3], 1, seed + 400)
