"""The options a case may carry, by operator, and the checks that a case can be built at all."""

from __future__ import annotations

import difflib

from ..case import Case
from ..errors import BadInput
from ..geometry import Geometry
from .batch import IDS, names_of
from .kinds import check_kind
from .patterns import INDEX_PATTERNS, MASK_PATTERNS
from .poison import POISONS

_POISON = {f"poison-{name}": f"what does not matter holds {name} values" for name in POISONS}
_NONCAUSAL = {"noncausal": "every query may see every key of its request"}
_BACKWARDS = {
    "backwards": "windows run from the last key to the first: a tile's last row does not reach furthest",
    "inverted": "windows without keys end before they start, those of the first request below 0",
}
_Q_SCALE = {"q-scale": "scales of the queries are an argument of their own, not folded into the weights"}
_EMPTY = {"empty-rows": "some queries, the first of each request among them, are given no key"}

_SCALES = {"fp32-scales": "scales as they come, not raised to a power of two"}
_FLOORS = {
    "amax-1e-10": "the largest value of a block is taken to be at least 1e-10, not 1e-4",
    "scale-1e-4": "the scale of a block is at least 1e-4 before it is raised, as fp8_ds_mla writers have it",
}
_FORMATS = {
    "fp8_e4m3": "cache of e4m3 codes with one scale for all",
    "fp8_ds_mla": "rows of 656 bytes: codes, four scales, rotated dims in bf16",
}
_SIZES = {"page-1": "pages of one token", "page-16": "pages of 16 tokens; otherwise 64"}
_SLOTS = {
    "padding": "some slots are -1, as those of padded tokens",
    "outside": "some slots lie beyond the last page or far below the first: nothing may be written for them",
}
_HUGE_PAGES = {
    "hugerows": "the pages in use lie past element 2**31 of the cache (gigabytes; on a CPU of addresses only)"
}
_SHARED = {"shared": "all requests begin with the same page, as those of one prompt do"}
_PACKED = {"packed": "pages lie in order and fill the cache: page 0 and the last one are in use, runs are consecutive"}
_PAGES = {**_SIZES, **_PACKED}
_CHUNK = {"chunk": "requests begin at a position of their own, seldom the first of a page"}
_LATE = {"late": "requests begin eight pages or more into their context"}
_REVERSED = {"reversed": "tokens come last first: their slots descend"}
_HOLES = {"holes": "one page in three is missing: its entry in the block table is -1 or outside the cache"}

OPTIONS: dict[str, dict[str, str]] = {
    "dense_mha": {**_NONCAUSAL, **_POISON},
    "masked_mha": {**MASK_PATTERNS, **_EMPTY, **_NONCAUSAL, **_POISON},
    "sparse_mqa": {
        **INDEX_PATTERNS,
        **_EMPTY,
        "lengths": "only the first lengths[s] slots count, 0 included; the tail is -1, out of range or wrong rows",
        "sink": "an attention sink a head: finite, one of them -inf, with five heads or more one +inf",
        "ds-mla": "the cache is fp8_ds_mla: rows of codes, a scale a tile of 128 and bf16 rotated dims (q is bf16)",
        "pages": "a quantised cache comes as pages of 64 rows",
        "pow2-scales": "tile scales are powers of two, as quantisers write since vllm#49435; otherwise seldom one",
        "wide-scales": "each tile of the latent is 32 times smaller than the one before",
        "zero-tiles": "a third of the tiles of the cache are zero and have the least scale that a quantiser writes",
        "row0": "the first key of the batch lies on row 0 of the cache, which otherwise belongs to none",
        "packed": "the tokens lie in order and fill the cache: its first row and its last are in use",
        "highrows": "the rows in use lie behind 65,536 unused ones",
        "hugerows": "the rows in use lie past element 2**31 of the cache (over 4 GiB; on a CPU of addresses only)",
        **_POISON,
    },
    "indexer_scores": {
        **_BACKWARDS,
        **_Q_SCALE,
        "compressed": "scores are compressed: a row starts at its own first key, with max_seqlen_k columns",
        **_POISON,
    },
    "paged_indexer_scores": {
        **_Q_SCALE,
        **_PACKED,
        **_SHARED,
        "hugerows": "the pages in use lie past byte 2**31 of the cache (on a CPU these are addresses only)",
        **_POISON,
    },
    "topk_select": {**_BACKWARDS, **_POISON},
    "merge_lse": {},
    "quantize": {**_SCALES, "ue8m0": "scales stored as exponent bytes", **_FLOORS},
    "write_cache": {
        **_FORMATS,
        **_SCALES,
        **_FLOORS,
        **_PAGES,
        **_SLOTS,
        **_REVERSED,
        **_CHUNK,
        **_HUGE_PAGES,
        **_POISON,
    },
    "write_index": {**_SCALES, **_PAGES, **_SLOTS, **_REVERSED, **_CHUNK, **_HUGE_PAGES, **_POISON},
    "gather": {**_FORMATS, **_PAGES, **_SHARED, **_CHUNK, **_LATE, **_HOLES, **_HUGE_PAGES, **_POISON},
    "gather_index": {**_PAGES, **_SHARED, **_CHUNK, **_LATE, **_HOLES, **_HUGE_PAGES, **_POISON},
    "convert_indices": {
        **INDEX_PATTERNS,
        **_EMPTY,
        **_PAGES,
        **_SHARED,
        **_HOLES,
        "compact": "valid entries come first, in their order",
        "padded-pages": "pages lie three rows further apart than they are long",
        "unknown-requests": "some queries name a row that the block table does not have",
    },
    "build_mask": {
        **INDEX_PATTERNS,
        **_EMPTY,
        **_CHUNK,
        "late": "requests begin in the middle of their keys or behind it",
        "global": "one mask for all chunks: the last word of row 0 holds where the keys of the request begin",
    },
}
_PATTERNS = {
    "sparse_mqa": INDEX_PATTERNS,
    "masked_mha": MASK_PATTERNS,
    "convert_indices": INDEX_PATTERNS,
    "build_mask": INDEX_PATTERNS,
}
#: Options of which a case has one at most.
EXCLUSIVE = (
    ("poison-nan", "poison-huge", "poison-stale"),
    ("highrows", "hugerows"),
    ("packed", "row0"),
    ("chunk", "late"),
    tuple(_FORMATS),
    tuple(_SIZES),
    ("fp32-scales", "ue8m0"),
    tuple(_FLOORS),
)
#: Operators whose heads are those of the indexer.
INDEXERS = ("indexer_scores", "paged_indexer_scores")
_NEEDS_INDEXER = (*INDEXERS, "write_index", "gather_index")
_NEEDS_NO_TOPK = ("dense-mask", "blocks")


def cache_format_of(case: Case) -> str:
    """How the rows of a cache are stored: ``model`` (the dtype of the queries), ``fp8_e4m3`` or ``fp8_ds_mla``."""
    if case.operator != "sparse_mqa":
        return "model"
    return "fp8_ds_mla" if "ds-mla" in case.options else "fp8_e4m3" if case.dtype == "e4m3" else "model"


def pattern_of(case: Case) -> str:
    """The index or mask pattern of a case: an option, or ``causal-random``."""
    named = [option for option in case.options if option in _PATTERNS.get(case.operator, {})]
    if len(named) > 1:
        raise BadInput(f"options {'+'.join(named)}: expected at most one pattern, got {len(named)}; drop all but one")
    return named[0] if named else "causal-random"


def check(case: Case, geometry: Geometry) -> None:
    """Raises BadInput unless tensors can be made for the case."""
    check_kind(case.operator, case.kind)
    known = OPTIONS[case.operator]
    for option in case.options:
        if option not in known and not option.startswith(IDS):
            near = difflib.get_close_matches(option, known, n=3, cutoff=0.5) or sorted(known) or ["none"]
            raise BadInput(f"option {option!r} does not fit {case.operator}; expected one of: {', '.join(near)}")
    for group in EXCLUSIVE:
        if len(set(group) & set(case.options)) > 1:
            raise BadInput(f"options {'+'.join(case.options)}: expected at most one of {', '.join(group)}")
    pattern, names = pattern_of(case), names_of(case)
    if len(set(names)) != len(names):
        raise BadInput(f"option 'ids-…': expected distinct numbers, got {names}")
    if case.geometry != geometry.name:
        raise BadInput(f"case geometry {case.geometry!r}: got the dimensions of {geometry.name!r}")
    selects = case.operator in ("sparse_mqa", "topk_select", "convert_indices", "build_mask") or (
        case.operator == "masked_mha" and pattern not in _NEEDS_NO_TOPK
    )
    if selects and case.topk < 1:
        raise BadInput(f"case {case.id}: {case.operator} selects keys; expected a top-k of at least 1, got 0")
    if case.operator in _NEEDS_INDEXER and geometry.index_head_dim is None:
        raise BadInput(f"geometry {geometry.name!r} has no indexer; expected index_head_dim, got None")
    if case.operator == "paged_indexer_scores":
        if case.dtype != "e4m3":
            raise BadInput(
                f"case {case.id}: {case.operator} reads quantised pages; expected dtype e4m3, got {case.dtype}"
            )
        if len(set(case.q_lens)) > 1 or case.q_lens[0] < 1:
            raise BadInput(
                f"case {case.id}: {case.operator} has as many queries in every request, at least 1, got {case.q_lens}"
            )
    if case.dtype == "e4m3" and case.operator not in (*INDEXERS, "sparse_mqa"):
        raise BadInput(f"case {case.id}: {case.operator} takes bf16, fp16 or fp32, got e4m3")
    if "ds-mla" in case.options and case.dtype != "bf16":
        raise BadInput(f"case {case.id}: option ds-mla goes with queries in bf16, got {case.dtype}")
    for option in ("pow2-scales", "wide-scales", "zero-tiles"):
        if option in case.options and "ds-mla" not in case.options:
            raise BadInput(f"case {case.id}: option {option} is about the tiles of ds-mla; add that option")
    if "pages" in case.options and cache_format_of(case) == "model":
        raise BadInput(f"case {case.id}: option pages needs a quantised cache: dtype e4m3 or option ds-mla")
