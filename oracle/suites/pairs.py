"""Rows of ``full`` in which every two properties of a case meet: a sink in fp16, duplicates in a cache of pages.

A kernel has one code path for a dtype and one for an option, and who wrote the second had one dtype in mind. Cases for
all combinations would be thousands; a covering table holds each *pair* of choices in some row, with few more rows than
its two longest lists have pairs (Cohen et al., The AETG system, IEEE Trans. Softw. Eng. 23, 1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from ..case import Case
from .row import Row, cases, ragged

#: The model whose dims the rows have.
GEOMETRY = "deepseek-v3.2"
#: One choice: words of which each is a dtype, ``kind=…``, or an option.
Choice = tuple[str, ...]
_DTYPES: tuple[Choice, ...] = (("bf16",), ("fp16",), ("fp32",))
_SIZES: tuple[Choice, ...] = ((), ("page-16",), ("page-1",))
_FLOORS: tuple[Choice, ...] = ((), ("amax-1e-10",), ("scale-1e-4",))
_SLOTS: tuple[Choice, ...] = (("padding",), ("outside",), ("outside", "padding"))
_PATTERNS: tuple[Choice, ...] = ((), ("invalid",), ("duplicates",), ("leading",), ("interleaved",), ("window",))


def _maybe(*options: str) -> tuple[Choice, ...]:
    return ((), *((option,) for option in options))


def _kinds(*kinds: str) -> tuple[Choice, ...]:
    return tuple((f"kind={kind}",) for kind in kinds)


#: Query and key lengths, heads and top-k of an operator's rows, and the lists of choices.
PAIRS: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], int, int, tuple[tuple[Choice, ...], ...]]] = {
    "dense_mha": (
        ragged((9, 70), (3, 0), (1, 33)), 2, 0,
        (_DTYPES, _maybe("noncausal"), _kinds("randn", "wide", "positive", "needle")),
    ),
    "masked_mha": (
        ragged((9, 70), (3, 20), (1, 33)), 2, 12,
        (_DTYPES, _maybe("noncausal"), _maybe("empty-rows"), _maybe("dense-mask", "blocks", "window")),
    ),
    "sparse_mqa": (
        ragged((6, 60), (2, 33)), 8, 33,
        (
            (*_DTYPES, ("bf16", "ds-mla"), ("bf16", "ds-mla", "pages"), ("e4m3",), ("e4m3", "pages")),
            (*_PATTERNS[:3], ("interleaved",)),
            _maybe("packed"), _maybe("lengths"), _maybe("sink"), _maybe("empty-rows"),
        ),
    ),
    "indexer_scores": (
        ragged((9, 70), (4, 2), (1, 33)), 8, 0,
        ((*_DTYPES, ("e4m3",)), _maybe("backwards", "inverted"), _maybe("q-scale"), _maybe("compressed")),
    ),
    "topk_select": (
        ragged((5, 90), (6, 3), (2, 40)), 1, 20,
        (_maybe("backwards", "inverted"), _kinds("randn", "signed", "crowded", "ties")),
    ),
    "merge_lse": (ragged((13, 13)), 4, 0, (_DTYPES, _kinds("randn", "wide", "empties", "ties"))),
    "quantize": (
        ragged((1, 9)), 1, 0,
        (_DTYPES, _maybe("fp32-scales", "ue8m0"), _FLOORS, _kinds("edges", "zeros", "tiny", "nonfinite", "spread")),
    ),
    "write_cache": (
        ragged((9, 30), (4, 4)), 1, 0,
        (
            tuple((*dtype, *fmt) for fmt in ((), ("fp8_e4m3",), ("fp8_ds_mla",)) for dtype in _DTYPES),
            _kinds("edges", "zeros", "nonfinite"), _SLOTS, _SIZES, _FLOORS,
            _maybe("fp32-scales"), _maybe("chunk"), _maybe("packed"),
        ),
    ),
    "write_index": (
        ragged((9, 30), (4, 4)), 1, 0,
        (_DTYPES, _kinds("edges", "tiny", "nonfinite"), _SLOTS, _SIZES, _maybe("fp32-scales"), _maybe("packed")),
    ),
    "gather": (
        ragged((1, 37), (1, 0), (1, 20)), 1, 0,
        (
            (*_DTYPES, ("bf16", "fp8_e4m3"), ("bf16", "fp8_ds_mla")),
            _kinds("randn", "codes", "wide"), _SIZES, _maybe("chunk"), _maybe("holes"), _maybe("packed"),
        ),
    ),
    "convert_indices": (
        ragged((5, 90), (3, 33)), 1, 33,
        (
            _PATTERNS, _SIZES, _maybe("packed"), _maybe("compact"), _maybe("holes"), _maybe("padded-pages"),
            _maybe("unknown-requests"), _maybe("empty-rows"),
        ),
    ),
    "build_mask": (
        ragged((5, 90), (0, 7), (3, 33)), 1, 33, (_PATTERNS, _maybe("chunk", "global"), _maybe("empty-rows")),
    ),
}  # fmt: skip


def covering(lists: Sequence[Sequence[Choice]]) -> Iterator[tuple[Choice, ...]]:
    """Rows with one choice of each list, such that any two choices of two lists share a row.

    A row begins with the first pair that is still missing and takes from each other list what adds most missing pairs.
    """
    places = [(i, j) for i, j in combinations(range(len(lists)), 2)]
    missing = {((i, a), (j, b)): None for i, j in places for a, b in product(lists[i], lists[j])}
    while missing:
        row = dict(next(iter(missing)))
        for i in (i for i in range(len(lists)) if i not in row):
            row[i] = max(lists[i], key=lambda a, i=i: sum(_pair((i, a), other) in missing for other in row.items()))  # type: ignore[misc]
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        yield tuple(row[i] for i in range(len(lists)))


def _pair(one: tuple[int, Choice], other: tuple[int, Choice]) -> tuple[tuple[int, Choice], tuple[int, Choice]]:
    return (one, other) if one[0] < other[0] else (other, one)


def pair_cases(seed: int) -> Iterator[Case]:
    """All rows, in order."""
    for operator, ((q, k), heads, topk, lists) in PAIRS.items():
        rows = [_row(q, k, topk, [word for choice in row for word in choice]) for row in covering(lists)]
        yield from cases(GEOMETRY, operator, rows, heads, seed)


def _row(q: tuple[int, ...], k: tuple[int, ...], topk: int, words: list[str]) -> Row:
    dtype = next((word for word in words if word in ("bf16", "fp16", "fp32", "e4m3")), "bf16")
    kind = next((word.removeprefix("kind=") for word in words if word.startswith("kind=")), "randn")
    options = tuple(word for word in words if word != dtype and not word.startswith("kind="))
    return Row(q, k, kind, options, topk, dtype=dtype)
