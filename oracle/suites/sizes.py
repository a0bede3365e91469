"""Rows of ``full`` with exactly the sizes that engines use, and with one request, row or token of a batch alone.

A kernel has a path of its own for what is common: 64 or 128 heads, top-2048, 2, 4 or 8 draft tokens, contexts that end
with a tile or one key past it. Rows of ``reach`` go past such a number, and none of them meets it.
"""

from __future__ import annotations

from .row import Row, ragged

# A key that is one of thousands weighs too little to be missed: keys of kind ``tagged`` weigh where they are the last.
#: As many queries as drafts, or small blocks of rows, have.
_DRAFTS = ((2, 50), (4, 61), (6, 70), (8, 83), (16, 90), (32, 101))
#: Contexts of a power of two and one key more.
_CONTEXTS = tuple((1 + i % 2, n + more) for i, n in enumerate((256, 512, 1024, 2048)) for more in (0, 1))
_FEW = ragged((2, 40), (1, 65))
_ONE = ragged((1, 33))
_TOP = ragged((1, 2100))
#: Options of the indexer all at once.
_ALL = ("backwards", "compressed", "q-scale")
_PREFIX = ragged((2, 190), (2, 64), (2, 140), (2, 30))
_LAST = ragged((3, 257), (2, 63), (2, 70), (1, 2113), (3, 67), (2, 0))

SIZES: dict[str, dict[str, Row]] = {
    "dense_mha": {
        "drafts-and-contexts": Row(*ragged(*_DRAFTS, *_CONTEXTS, (2, 4096), (1, 4097), (64, 64)), "tagged", heads=1),
        **{f"exactly-{heads}-heads": Row(*_ONE, heads=heads) for heads in (16, 32, 64, 128)},
        "rows-of-128": Row(*ragged((128, 128)), heads=2),
        "decodes": Row(*ragged((1, 70), (1, 65), (1, 9), (1, 128), (1, 33)), heads=2),
        "climbing": Row(*ragged((128, 140), (33, 33), (2, 300)), "climbing", heads=2),
        "blank": Row(*ragged((20, 90), (1, 40)), "blank", heads=2),
        "powers": Row(*ragged((20, 90), (1, 140), (7, 30), (3, 50)), "powers", heads=4),
        "powers-noncausal": Row(*ragged((9, 70), (12, 5), (3, 0), (1, 128)), "powers", ("noncausal",), heads=4),
    },
    "masked_mha": {
        "drafts-and-contexts": Row(*ragged(*_DRAFTS, *_CONTEXTS, (2, 4096), (1, 4097)), "tagged", topk=60, heads=1),
        **{f"exactly-{heads}-heads": Row(*_ONE, topk=12, heads=heads) for heads in (16, 32, 64, 128)},
        "decodes": Row(*ragged((1, 70), (1, 65), (1, 9), (1, 128), (1, 33)), topk=20, heads=2),
        "prefills-behind-a-decode": Row(*ragged((1, 33), (9, 70), (3, 20)), "randn", ("dense-mask",), 20, 2),
        "climbing": Row(*ragged((128, 140), (33, 33), (2, 300)), "climbing", topk=30, heads=2),
        "blank": Row(*ragged((20, 90), (1, 40)), "blank", topk=20, heads=2),
        "powers": Row(*ragged((20, 90), (1, 140), (7, 30), (3, 50)), "powers", topk=20, heads=4),
    },
    "sparse_mqa": {
        **{f"top-2048-of-{heads}-heads": Row(*_TOP, "randn", (), 2048, heads) for heads in (8, 32, 64, 128)},
        "top-2048-of-64-heads-tiles": Row(*_TOP, "randn", ("ds-mla", "pages"), 2048, 64),
        "top-2048-of-128-heads-tiles": Row(*_TOP, "randn", ("ds-mla", "pages"), 2048, 128),
        "top-2048-of-16-heads-plain": Row(*_TOP, "randn", ("pages",), 2048, 16, "e4m3"),
        "top-1024-of-64-heads": Row(*ragged((1, 1500)), "randn", (), 1024, 64),
        **{f"{heads}-heads-of-tiles": Row(*_FEW, "randn", ("ds-mla",), 33, heads) for heads in (8, 32, 128)},
        **{f"{heads}-heads-plain": Row(*_FEW, "randn", (), 33, heads, "e4m3") for heads in (8, 32, 128)},
        "slots-of-tiles": Row(*ragged((1, 310)), "randn", ("ds-mla", "pages"), 300, 8),
        "slots-plain": Row(*ragged((1, 310)), "randn", ("pages",), 300, 8, "e4m3"),
        "queries-of-tiles": Row(*ragged((18, 40)), "randn", ("ds-mla", "pages"), 20, 8),
        "queries-plain": Row(*ragged((18, 40)), "randn", ("pages",), 20, 8, "e4m3"),
        "more-slots-than-rows": Row(*ragged((3, 20)), "randn", (), 64, 8),
        "leading-tiles": Row(*ragged((4, 400)), "randn", ("leading",), 320, 16),
        "lengths-of-many-slots": Row(*ragged((40, 300)), "randn", ("lengths",), 160, 8),
        "islands": Row(*ragged((4, 900), (1, 200)), "randn", ("islands",), 320, 16),
        "islands-of-tiles": Row(*ragged((3, 500)), "needle", ("ds-mla", "islands", "lengths"), 256, 16),
        "climbing": Row(*ragged((3, 200), (2, 70)), "climbing", ("window",), 130, 16),
        "climbing-of-tiles": Row(*ragged((3, 200), (2, 70)), "climbing", ("ds-mla", "prefix"), 130, 16),
        "blank": Row(*ragged((6, 90), (2, 30)), "blank", ("sink",), 40, 16),
        "blank-of-tiles": Row(*ragged((6, 90), (2, 30)), "blank", ("ds-mla",), 40, 16),
        "blank-plain": Row(*ragged((6, 90), (2, 30)), "blank", ("pages",), 40, 16, "e4m3"),
        "powers": Row(*ragged((3, 90), (3, 50), (2, 70), (1, 40)), "powers", ("sink",), 40, 16),
        "powers-of-tiles": Row(*ragged((3, 90), (3, 50), (2, 70)), "powers", ("ds-mla",), 40, 16),
        "powers-of-tiles-pow2": Row(*ragged((3, 90), (3, 50), (2, 70)), "powers", ("ds-mla", "pow2-scales"), 40, 16),
        "powers-plain": Row(*ragged((3, 90), (3, 50), (2, 70)), "powers", (), 40, 16, "e4m3"),
        "powers-plain-pages": Row(*ragged((3, 90), (3, 50), (2, 70)), "powers", ("pages", "sink"), 40, 16, "e4m3"),
        "large-scores-beside-a-sink": Row(*ragged((6, 130), (1, 70)), "positive", ("sink",), 40, 16),
        "low-scores-beside-a-sink": Row(*ragged((6, 130), (1, 70)), "negative", ("sink",), 40, 16),
    },
    "indexer_scores": {
        **{
            f"exactly-{heads}-heads-{dtype}": Row(*_FEW, "randn", _ALL, 0, heads, dtype)
            for heads in (16, 32, 64)
            for dtype in ("bf16", "e4m3")
        },
        "keys-of-whole-tiles": Row(*ragged((126, 128), (2, 256)), heads=4),
        "windows-far-and-empty": Row(*_LAST, heads=4),
        "last-request-without-queries": Row(*ragged((3, 40), (0, 9)), heads=4),
        "powers": Row(*ragged((9, 70), (4, 33)), "powers", heads=8),
    },
    "paged_indexer_scores": {
        "contexts": Row(*ragged(*((1, keys) for _, keys in _CONTEXTS)), heads=8, dtype="e4m3"),
        **{
            f"{heads}-heads-next-n-{m}": Row(*ragged((m, 70), (m, 64)), heads=heads, dtype="e4m3")
            for heads in (32, 64)
            for m in (2, 3, 4)
        },
        "one-request": Row(*ragged((1, 130)), heads=8, dtype="e4m3"),
        "pages": Row(*ragged(*((1, 65 + i % 7) for i in range(130))), heads=1, dtype="e4m3"),
        "shared-prefix": Row(*_PREFIX, "randn", ("shared",), heads=8, dtype="e4m3"),
        "powers": Row(*ragged((2, 90), (2, 64)), "powers", heads=8, dtype="e4m3"),
    },
    "topk_select": {
        **{f"window-past-{k}": Row(*ragged((3, k + 1)), "randn", (), k) for k in (512, 1024, 2048)},
        "window-of-a-tile-more": Row(*ragged((1, 2112), (1, 2049), (1, 3000), (1, 2048)), "randn", (), 2048),
        **{
            f"top-2048-{kind}": Row(*ragged((4, 5001), (1, 2)), kind, (), 2048)
            for kind in ("ties", "negative", "nan", "crowded", "infs", "specials")
        },
        "crowded-bin": Row(*ragged((2, 18_500)), "zeros", (), 2048),
        "specials": Row(*ragged((5, 300), (2, 90)), "specials", (), 60),
        "one-row": Row(*ragged((1, 90)), "randn", (), 20),
        "sixteen-rows": Row(*ragged((16, 80)), "randn", (), 20),
    },
    "merge_lse": {
        **{f"exactly-{heads}-heads": Row(*ragged((5, 5)), heads=heads) for heads in (16, 32, 64)},
        "one-row": Row(*ragged((1, 1)), heads=4),
        "rows-of-64": Row(*ragged((64, 64)), heads=2),
        "powers": Row(*ragged((40, 40)), "powers", heads=8),
        "leftovers": Row(*ragged((33, 33)), "leftovers", heads=4),
        "powers-fp32": Row(*ragged((40, 40)), "powers", heads=8, dtype="fp32"),
        "powers-fp16": Row(*ragged((40, 40)), "powers", heads=8, dtype="fp16"),
    },
    "quantize": {
        "one-row": Row(*ragged((1, 1))),
        "large": Row(*ragged((1, 16)), "large"),
        "large-fp32-scales": Row(*ragged((1, 16)), "large", ("fp32-scales",), dtype="fp32"),
    },
    "write_cache": {
        "one-token": Row(*ragged((1, 40))),
        "large": Row(*ragged((9, 21)), "large", ("fp8_ds_mla",)),
        "reversed": Row(*ragged((20, 21), (9, 40)), "randn", ("page-16", "reversed")),
        "reversed-tiles": Row(*ragged((20, 21), (9, 40)), "edges", ("fp8_ds_mla", "padding", "reversed")),
    },
    "write_index": {
        "one-token": Row(*ragged((1, 40))),
        "large": Row(*ragged((9, 21)), "large"),
        "reversed": Row(*ragged((20, 21), (9, 40)), "randn", ("page-16", "reversed")),
    },
    "gather": {
        "late": Row(*ragged((1, 40), (1, 1), (1, 23)), "randn", ("late", "page-16")),
        "late-tiles": Row(*ragged((1, 30), (1, 9)), "randn", ("fp8_ds_mla", "late", "page-16")),
        "one-request": Row(*ragged((1, 64)), "randn", ("chunk",)),
        "shared-prefix": Row(*ragged((1, 40), (1, 1), (1, 23)), "randn", ("page-16", "shared")),
    },
    "gather_index": {
        "late": Row(*ragged((1, 40), (1, 1), (1, 23)), "randn", ("late", "page-16")),
        "one-request": Row(*ragged((1, 64)), "randn", ("chunk",)),
        "shared-prefix": Row(*ragged((1, 40), (1, 1), (1, 23)), "randn", ("page-16", "shared")),
    },
    "convert_indices": {
        "one-row": Row(*ragged((1, 90)), "randn", (), 33),
        "shared-prefix": Row(*ragged((3, 90), (2, 40)), "randn", ("compact", "page-16", "shared"), 33),
        "islands": Row(*ragged((3, 300)), "randn", ("compact", "islands", "page-16"), 200),
    },
    "build_mask": {
        "top-2048": Row(*ragged((1, 2100)), "randn", (), 2048),
        "late": Row(*ragged((3, 4200), (2, 2600)), "randn", ("late", "window"), 1500),
    },
}  # fmt: skip
