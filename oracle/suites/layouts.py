"""Rows of the suites for the layout operators: formats, pages, floors and sentinels, each with what brings it out."""

from __future__ import annotations

from ..inputs import kinds_of
from .reach import OWN_KINDS
from .row import Row, ragged

_NEW = ragged((5, 21), (9, 40), (2, 2))
_CONTEXT = ragged((1, 37), (1, 20), (1, 9))
_SELECT = ragged((5, 90), (3, 33))

QUICK: dict[str, tuple[Row, ...]] = {
    "quantize": (
        Row(*ragged((1, 9)), "randn", ("fp32-scales",)),
        Row(*ragged((1, 9)), "edges", ("fp32-scales",)),
        Row(*ragged((1, 8)), "edges", dtype="fp32"),
        Row(*ragged((1, 7)), "zeros", ("scale-1e-4",)),
        Row(*ragged((1, 8)), "tiny", ("amax-1e-10",), dtype="fp16"),
        Row(*ragged((1, 8)), "nonfinite", ("ue8m0",)),
    ),
    "write_cache": (
        Row(*_NEW, "randn", ("page-16", "padding")),
        Row(*ragged((4, 9), (3, 5)), "edges", ("fp8_e4m3", "outside")),
        Row(*_NEW, "edges", ("fp8_ds_mla", "page-16", "padding")),
        Row(*ragged((5, 8)), "randn", ("chunk", "fp32-scales", "fp8_ds_mla", "page-16")),
        Row(*ragged((6, 6)), "zeros", ("fp8_ds_mla", "outside", "page-1")),
    ),
    "write_index": (
        Row(*_NEW, "edges", ("page-16", "padding")),
        Row(*ragged((6, 40)), "randn", ("fp32-scales",)),
        Row(*ragged((7, 9)), "zeros", ("outside", "page-16")),
    ),
    "gather": (
        Row(*_CONTEXT, "randn", ("chunk", "page-16")),
        Row(*_CONTEXT, "codes", ("fp8_e4m3", "page-1")),
        Row(*_CONTEXT, "randn", ("chunk", "fp8_ds_mla", "holes", "page-16")),
        Row(*ragged((1, 70), (1, 12)), "wide", ("fp8_ds_mla",)),
    ),
    "gather_index": (
        Row(*_CONTEXT, "randn", ("chunk", "page-16")),
        Row(*ragged((1, 130), (1, 40)), "codes", ("holes", "poison-stale")),
        Row(*ragged((1, 3), (1, 0), (1, 11)), "wide", ("page-1",)),
    ),
    "convert_indices": (
        Row(*_SELECT, "randn", ("interleaved", "page-16"), 33),
        Row(*_SELECT, "far", ("compact", "holes", "leading", "page-16"), 40),
        Row(*_SELECT, "randn", ("compact", "invalid", "padded-pages"), 24),
        Row(*_SELECT, "randn", ("page-1", "trailing", "unknown-requests"), 16),
    ),
    "build_mask": (
        Row(*ragged((5, 90), (3, 33), (0, 7)), "randn", (), 40),
        Row(*ragged((6, 130)), "randn", ("duplicates",), 33),
        Row(*ragged((4, 100), (3, 40)), "randn", ("chunk", "invalid"), 48),
        Row(*ragged((4, 100), (3, 50)), "randn", ("global", "interleaved"), 48),
    ),
}
_FORMATS = ((), ("fp8_e4m3",), ("fp8_ds_mla",))


def _kinds(operator: str) -> tuple[str, ...]:
    """The kinds that are tried with every format; the others have rows in ``sizes``."""
    return tuple(kind for kind in kinds_of(operator) if kind not in OWN_KINDS[operator])


def full(indexer: bool) -> dict[str, tuple[Row, ...]]:
    """Every kind with every format and page size; the indexer's caches only where the model has an indexer."""
    sizes = (("page-1",), ("page-16",), ())
    new, context = ragged((33, 129), (1, 64), (7, 7), (3, 0)), ragged((1, 129), (1, 64), (1, 0), (1, 65))
    written = tuple(
        Row(*new, kind, (*fmt, *size, "padding"), dtype=dtype)
        for kind in _kinds("write_cache")
        for fmt, dtype in zip(_FORMATS, ("bf16", "fp32", "bf16"), strict=True)
        for size in sizes
    )
    written += tuple(Row(*ragged((0, 5), (0, 40)), "randn", fmt) for fmt in _FORMATS)
    rules = (("fp32-scales",), ("ue8m0", "amax-1e-10"), ("scale-1e-4",), ())
    rows: dict[str, tuple[Row, ...]] = {
        "quantize": tuple(
            Row(*ragged((1, 65)), kind, rule, dtype=dtype)
            for kind in _kinds("quantize")
            for rule, dtype in zip(rules, ("bf16", "fp32", "fp16", "bf16"), strict=True)
        ),
        "write_cache": written,
        "gather": tuple(
            Row(*context, kind, (*fmt, *size, *more))
            for kind in kinds_of("gather")
            for fmt in _FORMATS
            for size, more in zip(sizes, (("chunk",), ("holes",), ("chunk", "holes")), strict=True)
        ),
        "convert_indices": tuple(
            Row(*ragged((9, 700), (4, 129)), kind, (*size, *more), 257)
            for kind in kinds_of("convert_indices")
            for size in sizes
            for more in (("compact", "interleaved"), ("invalid",), ("holes", "padded-pages"))
        ),
        "build_mask": tuple(
            Row(*ragged((130, 700), (4, 129), (2, 0)), "randn", more, 257)
            for more in ((), ("global", "invalid"), ("chunk",), ("empty-rows", "window"))
        ),
    }
    if indexer:
        rows["write_index"] = tuple(Row(*new, kind, size) for kind in _kinds("write_index") for size in sizes)
        rows["gather_index"] = tuple(
            Row(*context, kind, (*size, "chunk")) for kind in kinds_of("gather") for size in sizes
        )
    return rows


#: What engines run: a chunk of 65,536 rows, a batch of 4,096 queries, top-2048.
PRODUCTION: dict[str, tuple[Row, ...]] = {
    "quantize": (Row((1,), (8192,), "edges"),),
    "write_cache": (Row((4096, 4096), (65536, 4096), "edges", ("fp8_ds_mla",)),),
    "write_index": (Row((4096, 4096), (65536, 4096), "edges"),),
    "gather": (Row((1, 1), (60000, 5536), "randn", ("chunk", "fp8_ds_mla")),),
    "gather_index": (Row((1, 1), (60000, 5536), "randn", ("chunk",)),),
    "convert_indices": (Row((4096,), (65536,), "far", ("compact", "interleaved"), 2048),),
    "build_mask": (Row((4096, 1024), (8192, 8192), "randn", ("global",), 2048),),
}
