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
_BACKWARDS = {"backwards": "windows run from the last key to the first: a tile's last row does not reach furthest"}
_Q_SCALE = {"q-scale": "scales of the queries are an argument of their own, not folded into the weights"}
_EMPTY = {"empty-rows": "some queries, the first of each request among them, are given no key"}

OPTIONS: dict[str, dict[str, str]] = {
    "dense_mha": {**_NONCAUSAL, **_POISON},
    "masked_mha": {**MASK_PATTERNS, **_EMPTY, **_NONCAUSAL, **_POISON},
    "sparse_mqa": {
        **INDEX_PATTERNS,
        **_EMPTY,
        "lengths": "only the first lengths[s] slots count, 0 included; the tail is -1, out of range or wrong rows",
        "sink": "an attention sink a head: finite, one of them -inf, with five heads or more one +inf",
        "row0": "the first key of the batch lies on row 0 of the cache, which otherwise belongs to none",
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
        "hugerows": "the pages in use lie past byte 2**31 of the cache (on a CPU these are addresses only)",
        **_POISON,
    },
    "topk_select": {**_BACKWARDS, **_POISON},
    "merge_lse": {},
}
_PATTERNS = {"sparse_mqa": INDEX_PATTERNS, "masked_mha": MASK_PATTERNS}
#: Operators whose heads are those of the indexer.
INDEXERS = ("indexer_scores", "paged_indexer_scores")
_NEEDS_NO_TOPK = ("dense-mask", "blocks")


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
    for group in (("poison-nan", "poison-huge", "poison-stale"), ("highrows", "hugerows")):
        if len(set(group) & set(case.options)) > 1:
            raise BadInput(f"options {'+'.join(case.options)}: expected at most one of {', '.join(group)}")
    pattern, names = pattern_of(case), names_of(case)
    if len(set(names)) != len(names):
        raise BadInput(f"option 'ids-…': expected distinct numbers, got {names}")
    if case.geometry != geometry.name:
        raise BadInput(f"case geometry {case.geometry!r}: got the dimensions of {geometry.name!r}")
    selects = case.operator in ("sparse_mqa", "topk_select") or (
        case.operator == "masked_mha" and pattern not in _NEEDS_NO_TOPK
    )
    if selects and case.topk < 1:
        raise BadInput(f"case {case.id}: {case.operator} selects keys; expected a top-k of at least 1, got 0")
    if case.operator in INDEXERS and geometry.index_head_dim is None:
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
    if case.dtype == "e4m3" and case.operator not in INDEXERS:
        raise BadInput(f"case {case.id}: {case.operator} takes bf16, fp16 or fp32, got e4m3")
