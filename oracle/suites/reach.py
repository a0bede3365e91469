"""Rows of ``full`` that reach past what small batches touch, one sort of reach a row, by operator and name.

A kernel is cut for some number of requests, rows, heads, keys or slots: a grid, a scan over one block of threads, a
buffer in shared memory. Whatever lies beyond it is right on every small batch. So each row goes past the powers of two
of one of these numbers and is small in all others, or uses what a shuffled cache leaves unused: its first and last row,
runs of consecutive pages, addresses past 2**31.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..case import Case
from .row import Row, ragged
from .sizes import SIZES

#: The model whose dims the rows have. It has an indexer, and rotated dims.
GEOMETRY = "deepseek-v3.2"
#: Requests of few keys, past 128; neighbours have one length in common, the first and the last have no key.
_MANY = ragged((1, 0), *((1, 1 + i // 2 % 7) for i in range(130)), (1, 0))
#: Decodes beside the edges of tiles, every length twice, before and behind prefills whose context is whole tiles.
_EDGES = ragged(
    *((1, keys) for keys in (63, 64, 64, 127, 128, 129, 129, 193)),
    *((64, 64), (9, 137), (128, 192), (7, 71), (63, 191)),
    *((1, keys) for keys in (65, 65, 192, 256, 257)),
)
#: Empty requests first, last and side by side; more queries than keys by more than a tile.
_GAPS = ragged((0, 5), (0, 0), (1, 50), (40, 40), (1, 70), (140, 5), (3, 0), (0, 7), (1, 33), (0, 0))
_LONG = ragged((2, 4133), (1, 4101))
#: All of these in one batch, with fewer requests and keys.
_BATCH = (
    (*_MANY[0][:36], *_EDGES[0], *_GAPS[0], 260, 2),
    (*_MANY[1][:36], *_EDGES[1], *_GAPS[1], 300, 1100),
)
#: A batch for values alone.
_VALUES = ragged((6, 130), (1, 70))
_WRITTEN = ragged((300, 330), (3, 0), (17, 20))
_CONTEXTS = ragged((1, 0), (1, 0), *((1, 1 + 9 * i % 23) for i in range(70)), (1, 0), (1, 0), (1, 6), (1, 0))
_FAR = ragged((3, 90), (2, 38))

_PAST: dict[str, dict[str, Row]] = {
    "dense_mha": {
        "requests": Row(*_MANY, heads=1),
        "edges": Row(*_EDGES, heads=1),
        "gaps": Row(*_GAPS, heads=1),
        "edges-noncausal": Row(*_EDGES, "randn", ("noncausal",), heads=1),
        "heads": Row(*ragged((3, 9)), heads=66),
        "odd-heads": Row(*ragged((3, 40), (1, 9)), heads=5),
        "keys": Row(*_LONG, heads=1),
        "queries": Row(*ragged((520, 560)), heads=1),
        "large-scores": Row(*_VALUES, "positive", heads=2),
        "no-keys": Row(*ragged((3, 0), (1, 0)), heads=2),
    },
    "masked_mha": {
        # Few shapes that other rows do not have, since FlexAttention compiles each of them for seconds.
        "batch": Row(*_BATCH, topk=60, heads=1),
        "heads": Row(*ragged((3, 40), (1, 9)), topk=12, heads=21),
        "one-key": Row(*ragged((40, 200), (3, 3)), topk=1, heads=2),
        "large-scores": Row(*_VALUES, "positive", topk=40, heads=2),
    },
    "sparse_mqa": {
        "slots": Row(*ragged((2, 2300), (1, 2048), (1, 2049)), topk=2048, heads=16),
        "queries": Row(*ragged((140, 170)), topk=8, heads=1),
        "odd-heads": Row(*ragged((4, 70)), topk=33, heads=5),
        "heads": Row(*ragged((4, 70)), topk=33, heads=40),
        "first-and-last-row": Row(*ragged((3, 70), (2, 58)), "randn", ("packed", "window"), 40, 16),
        "first-and-last-page": Row(*ragged((3, 70), (2, 58)), "randn", ("ds-mla", "packed", "pages"), 64, 16),
        "first-and-last-page-plain": Row(*ragged((3, 70), (2, 58)), "randn", ("packed", "pages"), 64, 16, "e4m3"),
        "sink-of-empty-rows": Row(*ragged((6, 60), (2, 9)), "wide", ("empty-rows", "sink"), 33, 16),
        "lengths-of-a-tile": Row(*ragged((6, 200)), "randn", ("lengths",), 64, 16),
        "lengths-past-a-tile": Row(*ragged((6, 200)), "randn", ("lengths",), 65, 16),
        "far-duplicates": Row(*ragged((3, 200)), "randn", ("duplicates",), 150, 16),
        "no-keys": Row(*ragged((3, 0), (1, 0)), "randn", (), 8, 16),
        "large-scores": Row(*_VALUES, "positive", (), 40, 16),
        "large-scores-of-tiles": Row(*_VALUES, "positive", ("ds-mla",), 40, 16),
        "large-scores-plain": Row(*_VALUES, "positive", (), 40, 16, "e4m3"),
        "far-rows": Row(*_FAR, "randn", ("hugerows",), 33, 16),
        "far-tile-rows": Row(*_FAR, "randn", ("ds-mla", "hugerows"), 33, 16),
        "far-plain-rows": Row(*_FAR, "randn", ("hugerows",), 33, 16, "e4m3"),
    },
    "indexer_scores": {
        "queries": Row(*ragged((270, 300)), heads=4),
        "keys": Row(*ragged((2, 4200), (1, 64), (2, 900)), heads=8),
        "odd-heads": Row(*ragged((4, 60), (3, 9)), heads=5),
        "windows-from-tile-edges": Row(*ragged((5, 64), (9, 128), (4, 70)), heads=8),
        "far-scales": Row(*ragged((9, 100), (4, 33)), "farscales", heads=8, dtype="e4m3"),
        "compressed-queries": Row(*ragged((100, 123), (40, 41)), "randn", ("compressed",), heads=4, dtype="e4m3"),
    },
    "paged_indexer_scores": {
        "requests": Row(*_MANY, heads=4, dtype="e4m3"),
        "keys": Row(*ragged((1, 2113), (1, 0), (1, 1088)), heads=8, dtype="e4m3"),
        "next-n-6": Row(*ragged((6, 131), (6, 4), (6, 64)), heads=8, dtype="e4m3"),
        "first-and-last-page": Row(*ragged((2, 250), (2, 64), (2, 130)), "randn", ("packed",), heads=8, dtype="e4m3"),
        "far-scales": Row(*ragged((2, 130), (2, 64)), "farscales", heads=8, dtype="e4m3"),
        "far-pages": Row(*ragged((1, 90), (1, 64)), "randn", ("hugerows",), heads=8, dtype="e4m3"),
    },
    "topk_select": {
        "columns": Row(*ragged((2, 70_000)), "randn", (), 2048),
        "slots": Row(*ragged((3, 5000), (2, 4096)), "randn", (), 2048),
        "rows": Row(*ragged((66, 80), (3, 32)), "randn", (), 16),
        "signed-zeros": Row(*ragged((4, 300), (2, 90)), "signed", (), 60),
        "spread": Row(*ragged((5, 300), (2, 90)), "spread", (), 60),
        "crowded": Row(*ragged((6, 300), (5, 150)), "crowded", (), 60),
    },
    "merge_lse": {
        "rows": Row(*ragged((1100, 1100)), heads=4),
        "heads": Row(*ragged((5, 5)), heads=128),
        "odd-heads": Row(*ragged((9, 9)), heads=5),
        "ties": Row(*ragged((33, 33)), "ties", heads=4),
    },
    "quantize": {
        "rows": Row(*ragged((1, 1100))),
        "spread": Row(*ragged((1, 40)), "spread", ("fp32-scales",)),
    },
    "write_cache": {
        "tokens": Row(*_WRITTEN, "randn", ("padding", "page-16")),
        "first-and-last-page": Row(*ragged((48, 48), (3, 16)), "randn", ("packed", "page-16")),
        "first-and-last-page-tiles": Row(*ragged((48, 48), (3, 16)), "edges", ("fp8_ds_mla", "packed", "page-16")),
        "far-pages": Row(*ragged((5, 21)), "randn", ("hugerows",)),
        "far-pages-plain": Row(*ragged((5, 21)), "randn", ("fp8_e4m3", "hugerows")),
        "far-pages-tiles": Row(*ragged((5, 21)), "randn", ("fp8_ds_mla", "hugerows")),
    },
    "write_index": {
        "tokens": Row(*_WRITTEN, "randn", ("padding", "page-16")),
        "first-and-last-page": Row(*ragged((48, 48), (3, 16)), "randn", ("packed", "page-16")),
        "far-pages": Row(*ragged((5, 21)), "randn", ("hugerows",)),
    },
    "gather": {
        "requests": Row(*_CONTEXTS, "randn", ("page-1",)),
        "tokens": Row(*ragged((1, 1500), (1, 40)), "randn", ("fp8_e4m3", "page-16")),
        "first-and-last-page": Row(*ragged((1, 40), (1, 16)), "randn", ("packed", "page-16")),
        "far-pages": Row(*ragged((1, 20)), "randn", ("hugerows",)),
        "far-pages-tiles": Row(*ragged((1, 20)), "randn", ("fp8_ds_mla", "hugerows")),
    },
    "gather_index": {
        "requests": Row(*_CONTEXTS, "randn", ("page-1",)),
        "tokens": Row(*ragged((1, 1500), (1, 40)), "randn", ("page-16",)),
        "first-and-last-page": Row(*ragged((1, 40), (1, 16)), "randn", ("packed", "page-16")),
        "far-pages": Row(*ragged((1, 20)), "randn", ("hugerows",)),
    },
    "convert_indices": {
        "slots": Row(*ragged((2, 2300), (1, 5)), "randn", ("compact", "page-16"), 2048),
        "rows": Row(*ragged((140, 160), (3, 0), (2, 9)), "randn", ("interleaved", "page-1"), 9),
        "first-and-last-page": Row(*ragged((4, 60), (6, 30)), "randn", ("compact", "packed", "page-16"), 30),
    },
    "build_mask": {
        "requests": Row(_MANY[0][:70], _MANY[1][:70], "randn", (), 3),
        "keys": Row(*ragged((2, 4224), (1, 2048), (1, 32)), "randn", (), 1500),
        "queries": Row(*ragged((140, 170)), "randn", ("window",), 32),
        "chunks": Row(*ragged(*((2, 120 + i % 17) for i in range(60))), "randn", ("chunk",), 60),
    },
}

#: By operator and name: rows that go past a size, then those that meet one (``sizes``).
REACH = {operator: {**rows, **SIZES.get(operator, {})} for operator, rows in _PAST.items()}
#: Kinds that have their rows above alone, and are not repeated at every edge of every geometry.
OWN_KINDS: dict[str, tuple[str, ...]] = {
    "dense_mha": ("positive", "climbing", "blank", "powers"),
    "masked_mha": ("positive", "climbing", "blank", "powers"),
    "sparse_mqa": ("positive", "climbing", "blank", "powers"),
    "indexer_scores": ("farscales", "powers"),
    "paged_indexer_scores": ("farscales", "powers"),
    "topk_select": ("signed", "spread", "crowded", "specials"),
    "merge_lse": ("ties", "leftovers", "powers"),
    "quantize": ("large",),
    "write_cache": ("large",),
    "write_index": ("large",),
}


def reach_case(operator: str, name: str, seed: int = 0) -> Case:
    """One row of the table as a case."""
    return REACH[operator][name].case(operator, GEOMETRY, 1, seed)


def is_reach(case: Case, name: str) -> bool:
    """Whether a case is that row, under whatever seed and layout."""
    return name in REACH[case.operator] and replace(case, layout="contiguous") == reach_case(
        case.operator, name, case.seed
    )


def reach_cases(seed: int) -> Iterator[Case]:
    """All rows, in order."""
    for operator, rows in REACH.items():
        for place, name in enumerate(rows):
            yield reach_case(operator, name, seed + place)
