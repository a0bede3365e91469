"""Faults in the shipped Triton kernels of the layout operators, as edits of their source."""

from __future__ import annotations

from ..edits import edit

_QUANTIZE, _WRITE, _WRITE_INDEX, _GATHER = "quantize", "write_cache", "write_index", "gather"
_GATHER_INDEX, _CONVERT, _MASK = "gather_index", "convert_indices", "build_mask"
_FLOAT8, _PAGING = "float8", "paging"

TRITON_LAYOUTS = (
    edit(
        "triton-scale-cut-to-a-power", _QUANTIZE, _FLOAT8,
        "(bits + 0x7FFFFF) & 0x7F800000", "bits & 0x7F800000",
        "Scales go down to a power of two, so that values exceed 448.", "sglang#31210", "exact",
    ),
    edit(
        "triton-scale-of-a-power-doubled", _QUANTIZE, _FLOAT8,
        "bits + 0x7FFFFF", "bits + 0x800000",
        "A scale that is a power of two is raised as well.", "sglang#31210", "exact", ("kind=edges",),
    ),
    edit(
        "triton-nan-and-infinity-in-amax", _QUANTIZE, _FLOAT8,
        'tl.where(size < float("inf"), size, 0.0)', "size",
        "An infinity is the maximum of its block.", "", "exact", ("kind=nonfinite",),
    ),
    edit(
        "triton-scale-floor-missing", _QUANTIZE, _FLOAT8,
        "tl.maximum(amax, least_amax)", "amax",
        "A block of zeros has the scale 0.", "vllm#49435", "exact", ("kind=tiny",),
    ),
    edit(
        "triton-quotient-by-reciprocal", _QUANTIZE, _FLOAT8,
        "tl.div_rn(x, scale)", "(x * tl.div_rn(1.0, scale))",
        "Values are multiplied by the rounded 1 / scale.", "", "exact", ("fp32-scales", "kind=edges"),
    ),
    edit(
        "triton-exponent-without-bias", _QUANTIZE, _QUANTIZE,
        "bitcast=True) >> 23", "bitcast=True) >> 22",
        "The exponent byte is taken one bit too low.", "", "exact", ("ue8m0",),
    ),
    edit(
        "triton-block-stride-of-the-row", _QUANTIZE, _QUANTIZE,
        "number % per_row * WIDTH", "0 * number",
        "Every block of a row reads the first.", "", "exact",
    ),
    edit(
        "triton-written-offset-in-31-bits", _WRITE, _WRITE,
        "slot // page_size * page_stride", "(slot // page_size * page_stride & 0x7FFFFFFF)",
        "Page times stride keeps 31 bits: a stray write inside the cache.", "aiter#4474", "exact", ("hugerows",),
    ),
    edit(
        "triton-padding-written", _WRITE, _WRITE,
        "live = (slot >= 0) & (slot < slot_count)", "live = (token < s) & (slot < slot_count) & (slot > -page_size)",
        "Slots of -1 are written, just before the cache.", "", "memory", ("padding", "layout=contiguous"),
    ),
    edit(
        "triton-row-scales-overlap", _WRITE, _WRITE,
        "as_fp32(row_ptr + C + start // TILE * 4)", "as_fp32(row_ptr + C + 0 * start)",
        "All tiles store their scale in one place.", "", "exact", ("fp8_ds_mla",),
    ),
    edit(
        "triton-row-rope-behind-codes", _WRITE, _WRITE,
        "as_bf16(row_ptr + C + C // TILE * 4)", "as_bf16(row_ptr + C)",
        "Rotated dims are stored where the scales are.", "", "exact", ("fp8_ds_mla",),
    ),
    edit(
        "triton-index-offset-in-31-bits", _WRITE_INDEX, _WRITE_INDEX,
        "slot // page_size * page_stride", "(slot // page_size * page_stride & 0x7FFFFFFF)",
        "Page times stride keeps 31 bits: a stray write inside the pages.", "aiter#4474", "exact", ("hugerows",),
    ),
    edit(
        "triton-index-codes-side-by-side", _WRITE_INDEX, _WRITE_INDEX,
        "page_ptr + place * E)", "page_ptr + place * (E + 4))",
        "Codes are spaced as if a scale followed each.", "vllm#50576", "exact",
    ),
    edit(
        "triton-gathered-offset-in-31-bits", _GATHER, _GATHER,
        "cache_ptr + page * page_stride", "cache_ptr + (page * page_stride & 0x7FFFFFFF)",
        "Page times stride keeps 31 bits: a stray read inside the cache.", "flashinfer#3136", "exact", ("hugerows",),
    ),
    edit(
        "triton-gathered-scale-of-first-tile", _GATHER, _GATHER,
        "as_fp32(row_ptr + C + start // TILE * 4)", "as_fp32(row_ptr + C + 0 * start)",
        "All tiles use the scale of the first.", "vllm#48611", "exact", ("fp8_ds_mla",),
    ),
    edit(
        "triton-gathered-in-bf16", _GATHER, _GATHER,
        "x = values_of(x) * scale[:, None]",
        "x = values_of(x).to(tl.bfloat16) * scale.to(tl.bfloat16)[:, None]",
        "Code and scale are multiplied in bf16.", "", "exact", ("fp8_ds_mla",),
    ),
    edit(
        "triton-gathered-rows-unwritten", _GATHER, _GATHER,
        "written = (token < tokens)[:, None]", "written = held[:, None]",
        "Rows whose page is missing are left unset.", "", "exact", ("holes",),
    ),
    edit(
        "triton-index-read-in-31-bits", _GATHER_INDEX, _GATHER_INDEX,
        "pages_ptr + page * page_stride", "pages_ptr + (page * page_stride & 0x7FFFFFFF)",
        "Page times stride keeps 31 bits: a stray read inside the pages.", "flashinfer#3136", "exact", ("hugerows",),
    ),
    edit(
        "triton-index-scale-behind-codes", _GATHER_INDEX, _GATHER_INDEX,
        "page_ptr + page_size * E + place * 4", "page_ptr + (place + 1) * E",
        "The scale is read from behind the token's codes.", "vllm#50576", "exact", ("page-16",),
    ),
    edit(
        "triton-request-found-late", _GATHER, _PAGING,
        "tl.load(cu_ptr + middle) <= token", "tl.load(cu_ptr + middle) < token",
        "The first token of a request counts to the one before.", "", "exact", ("requests=2",),
    ),
    edit(
        "triton-chunk-start-forgotten", _GATHER_INDEX, _PAGING,
        " + tl.load(starts_ptr + request)", "",
        "Every chunk begins at position 0.", "", "exact", ("chunk",),
    ),
    edit(
        "triton-missing-page-read", _GATHER, _PAGING,
        "return page, reached & (page >= 0) & (page < blocks)",
        "return tl.minimum(tl.maximum(page, 0), blocks - 1), reached",
        "A page outside the cache is read as the nearest one.", "vllm#45324", "exact", ("holes",),
    ),
    edit(
        "triton-invalid-index-0", _CONVERT, _CONVERT,
        "page * page_rows + position % page_size, -1)", "page * page_rows + position % page_size, 0)",
        "Invalid entries become row 0.", "vllm#45324", "exact",
    ),
    edit(
        "triton-index-product-in-32-bits", _CONVERT, _PAGING,
        "return page, reached & (page >= 0) & (page < blocks)",
        "return page.to(tl.int32), reached & (page >= 0)",
        "page * page_rows wraps at 32 bits for pages outside the cache.", "vllm#50427", "exact",
        ("holes", "kind=far"),
    ),
    edit(
        "triton-valid-count-stops-at-8", _CONVERT, _CONVERT,
        "tl.store(counts_ptr + query, count)", "tl.store(counts_ptr + query, tl.minimum(count, 8))",
        "The count stops at 8.", "vllm#36616", "exact",
    ),
    edit(
        "triton-compacted-tail-unset", _CONVERT, _CONVERT,
        "mask=(slot >= count) & (slot < k))", "mask=(slot > count) & (slot < k))",
        "The entry behind the last valid one is left unset.", "vllm#36616", "rerun", ("compact",),
    ),
    edit(
        "triton-mask-row-of-the-query", _MASK, _MASK,
        "row = query - tl.load(cu_q_ptr + request)", "row = query",
        "Rows count from the first request.", "", "exact", ("requests=2",),
    ),
    edit(
        "triton-mask-stored-not-combined", _MASK, _MASK,
        'tl.atomic_or(row_ptr + (bit >> 5), 1 << (bit & 31), mask=set_, sem="relaxed")',
        "tl.store(row_ptr + (bit >> 5), 1 << (bit & 31), mask=set_)",
        "The last key of a word wins.", "", "exact",
    ),
    edit(
        "triton-mask-before-the-chunk", _MASK, _MASK,
        "bit = position - start", "bit = tl.maximum(position - start, 0)",
        "Positions before a chunk set its first bit.", "", "exact", ("chunk",),
    ),
)  # fmt: skip
