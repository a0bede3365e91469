"""The value kinds of every operator: what each draws, and which faults it is for.

Fault numbers are those of the catalogue's families: a kind is chosen for the faults that randn lets through.
"""

from __future__ import annotations

from ..errors import BadInput

ATTENTION: dict[str, str] = {
    "randn": "q, k normal, v normal about a mean per column: scale, exp, rounding and accumulation in the common range",
    "small": "q*.3, k*.1, v*.1: nearly uniform weights and small outputs, where a padded key that counts shows",
    "wide": "q*4: peaked softmax, large scores: finite mask sentinels, fp16 overflow, scores rounded to bf16",
    "offset": "v = 3 + .05z, k*2 (MQA: value columns of q*8): low-precision accumulators and partials, truncated or "
    "biased weights, lost rescales",
    "needle": "a few keys on tile and sequence edges (0, 63, 64, 127, 128, last) dominate, another set a head: dropped "
    "first, last and tile-edge tokens, swapped heads, low-precision accumulation",
    "tagged": "v one-hot at the key's position, mass on edge tokens: the output names the keys that were attended; "
    "masks and windows off by one, a token counted twice, a wrong page",
    "grid": "sparse small integers, exact in every format: scores and their sums are exact, so a structural fault "
    "cannot hide behind rounding",
    "constant": "all keys score alike, in odd heads at one of two levels: a wrong key count, a row sum that misses a "
    "tile. With one head it is weak by nature: a query that sees all keys gets the mean of v",
    "negative": "all scores near -200: a running maximum that starts at 0, empty rows, masked tiles that win",
    "sinktoken": "key 0 takes nearly all the mass, its v is small: underflow of the tail in low-precision weights",
    "positive": "all scores near 200: exp without a maximum overflows",
    "climbing": "scores rise by 1.5 a key over 128 keys: hidden keys score far above those that are seen, and a "
    "maximum that is renewed late lets exp overflow",
    "blank": "every third key (row of the cache) and every third query is zero, of either sign: a score of exactly 0, "
    "a row of zeros that counts",
    "powers": "randn, queries times 2**40 and keys times 2**-40 or the other way round by request and head, so values: "
    "a copy in fp16, outputs that saturate or are flushed (2**6 in fp16; in e4m3 scales far from 1)",
    "mixed": "each request (and head, where keys have heads) another kind: rules that hold on a sample of rows only",
}

INDEXER: dict[str, str] = {
    "randn": "normal values, key scales not powers of two: the ReLU, weights per head, scales read by exponent",
    "negative": "all q.k < 0: every ReLU gives 0, so a missing ReLU or one after the weighting is gross",
    "clustered": "scores that differ in fp32 and agree in bf16: scores kept in low precision",
    "grid": "small integers and power-of-two scales: exact scores, many exact ties",
    "wide": "q*8, scales over 2**-6..2**6: overflow of low-precision scores, a scale applied inside the sum",
    "pow2": "randn with power-of-two key scales, as ue8m0 quantisers write",
    "saturated": "every value is 448 or -448, the ends of e4m3: products overflow an fp16 accumulator",
    "zerokeys": "every third key is a block of zeros with the least scale of a quantiser: scales in the wrong place",
    "powers": "queries and keys times 2**40, 1 or 2**-40 (less in fp16 and e4m3): a copy in fp16, clamped scores",
    "farscales": "scales over 2**-22..2**22, the least that a quantiser writes among them: scales flushed or clamped",
}

TOPK: dict[str, str] = {
    "randn": "normal scores",
    "ties": "seven distinct values: ties at the threshold, counts above k",
    "clustered": "distinct in fp32, thousands share their fp16 bits: overflow of a radix bucket",
    "ramp": "ascending or descending with the key: first and last keys win; order-dependent buffers",
    "constant": "one value: any k keys are right, duplicates and gaps are not",
    "zeros": "about 100 winners, then thousands of exact zeros: an indexer whose ReLU cuts most keys",
    "infs": "+inf and -inf among normal scores: -inf inside the window is still selectable",
    "negative": "all scores negative: a threshold or padding that starts at 0",
    "nan": "a few NaN inside the window, which rank above +inf: uninitialised slots",
    "signed": "half the scores are zeros of either sign, which are equal: a rank taken from the bits of -0",
    "spread": "magnitudes over 2**-96..2**120, in some rows large or small alone: scores clamped or flushed",
    "specials": "NaN, +inf and -inf, each in a quarter of the columns: all three ranked in one row",
    "crowded": "rows in turn: -inf alone, NaN or +inf in half the columns, -inf in nine of ten: more of them than k",
}

MERGE: dict[str, str] = {
    "randn": "both sides filled, lse a few units apart",
    "wide": "lse up to 200 apart, of either sign: overflow of exp without a common maximum, base-2 logs",
    "empties": "a side or both with lse -inf, NaN in the empty side's out: 0 * NaN, -inf - -inf",
    "leftovers": "the same with NaN, infinities or large numbers in the empty side's out: NaN that is cleaned alone",
    "powers": "outputs times 2**40, 1 or 2**-40 (2**6 in fp16), lse up to 2000 in size on both sides alike: a copy in "
    "fp16, outputs that saturate, an lse taken for that of an empty side",
    "ties": "lse equal on both sides or one step of fp32 apart, beside ordinary ones: a side that takes all",
}

QUANTISER: dict[str, str] = {
    "randn": "normal values about a power of two a block: the common range, scales seldom powers of two",
    "edges": "block maxima at 448 times powers of two and 3/4, 5/8, 7/8 of them, a step above and below; the rest on "
    "and beside midpoints between codes: truncation, double rounding, log2 and exp2, reciprocals",
    "zeros": "half the blocks all zero, of either sign: division by zero, a floor left out or put elsewhere",
    "tiny": "blocks around and below every floor: 1e-4 taken for 1e-10, a floor on the wrong quantity",
    "nonfinite": "NaN and infinities inside blocks: a maximum that spreads them, a cast that does not saturate",
    "spread": "blocks over 2**-72..2**72: a scale that is clamped, or wraps in its exponent",
    "large": "blocks over 2**60..2**120, near the end of bf16 and fp32: the same at the top",
}

STORED: dict[str, str] = {
    "randn": "codes of every size and scales that are no powers of two: a scale read by its exponent, a wrong page",
    "pow2": "scales that are powers of two, as ue8m0 quantisers write",
    "codes": "all 256 codes, NaN among them: another 8-bit format, a NaN that becomes a number",
    "wide": "scales over 2**-40..2**40: products in low precision",
}

PAGING: dict[str, str] = {
    "randn": "pages of all requests in random order over a small cache",
    "far": "the last pages that int32 can count the rows of, and pages outside that wrap into the cache at 32 bits",
}

SELECTION: dict[str, str] = {"randn": "keys of the causal prefix, as an indexer selects them"}

KINDS: dict[str, dict[str, str]] = {
    "dense_mha": ATTENTION,
    "masked_mha": ATTENTION,
    "sparse_mqa": ATTENTION,
    "indexer_scores": INDEXER,
    "paged_indexer_scores": INDEXER,
    "topk_select": TOPK,
    "merge_lse": MERGE,
    "quantize": QUANTISER,
    "write_cache": QUANTISER,
    "write_index": QUANTISER,
    "gather": STORED,
    "gather_index": STORED,
    "convert_indices": PAGING,
    "build_mask": SELECTION,
}


def kinds_of(operator: str) -> tuple[str, ...]:
    """The kinds that fit an operator. Raises BadInput for an operator without inputs."""
    if operator not in KINDS:
        raise BadInput(f"operator {operator!r}: expected one of {', '.join(KINDS)}")
    return tuple(KINDS[operator])


def check_kind(operator: str, kind: str) -> None:
    """Raises BadInput, listing the kinds that fit, unless ``kind`` fits ``operator``."""
    if kind not in kinds_of(operator):
        raise BadInput(f"kind {kind!r} does not fit {operator}; expected one of {', '.join(kinds_of(operator))}")
