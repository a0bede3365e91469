"""What a case covers, as names: a campaign looks for those that it has not seen.

Every class belongs to an implementation, since each has its own tiles and branches:

==========  ================================================================================================
lengths     of one request: how q and k relate (q = k, k = top-k + 1 …), residues of q and k by tile and page,
            how many tiles they fill
meets       two of the above in one request: a relation at a residue is where masks go wrong
batch       how many requests, whether they are alike, where an empty one lies, what is off a tile's edge
values      kind, dtype, layout, geometry, heads, top-k by tile, options
contract    what the declared contract is asked for: rows without a key, invalid and double indices, sinks …
route       what an engine's step would be: decode, prefill or both, and whether the indexer may be skipped
config      what chooses a kernel's constants: dtype, cache format, dims, heads, switches
pairs       two of values, or one of them and a relation, in one case
==========  ================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

from ..case import Case
from ..inputs.options import cache_format_of
from .groups import Classes, several
from .scene_classes import scene_classes
from .scenes import KINDS

#: Tiles and pages by which residues are told apart.
TILES = (16, 64, 128)


def classes(case: Case) -> Classes:
    """Group -> names of what the case covers."""
    if case.operator in KINDS:
        return scene_classes(case)
    requests = [_request(q, k, case.topk) for q, k in dict.fromkeys(zip(case.q_lens, case.k_lens, strict=True))]
    values = tuple(_values(case))
    relations = {name for request in requests for name in request.relations}
    return {
        "lengths": frozenset(relations).union(*(request.residues for request in requests)),
        "meets": frozenset().union(*(request.meets for request in requests)),
        "batch": frozenset(_batch(case)),
        "values": frozenset(values),
        "contract": frozenset(_contract(case)),
        "route": frozenset(_route(case)),
        "config": frozenset([_config(case)]),
        "pairs": frozenset((*combinations(sorted(values), 2), *product(values, relations))),
    }


def residue(length: int, tile: int) -> str:
    """Where a length lies by a tile: on its edge, one behind, one before, or elsewhere."""
    return {0: "0", 1: "1", tile - 1: "-1"}.get(length % tile, "other")


@dataclass(frozen=True, slots=True)
class Request:
    """What the lengths of one request cover."""

    relations: tuple[str, ...]
    residues: tuple[str, ...]
    meets: frozenset[tuple[str, str]]


@lru_cache(maxsize=1 << 16)
def _request(q: int, k: int, topk: int) -> Request:
    relations = ["q = 0" if not q else "q = 1" if q == 1 else "q > 1"]
    relations.append("k = 0" if not k else "k = 1" if k == 1 else "k > 1")
    relations.append("q = k" if q == k else "q < k" if q < k else "q > k")
    if abs(q - k) == 1:
        relations.append("k = q + 1" if k > q else "k = q - 1")
    if topk:
        near = {-1: "k = top-k - 1", 0: "k = top-k", 1: "k = top-k + 1"}
        relations.append(near.get(k - topk, "k < top-k" if k < topk else "k > top-k"))
    ours, theirs = _residues("q", q), _residues("k", k)
    residues = (*ours, *theirs)
    return Request(tuple(relations), residues, frozenset((*product(relations, residues), *product(ours, theirs))))


def _residues(name: str, length: int) -> tuple[str, ...]:
    found = [f"{name}%{tile} = {residue(length, tile)}" for tile in TILES]
    return (*found, f"{name} fills {several(-(-length // 64))} x 64")


def _batch(case: Case) -> Iterator[str]:
    pairs = list(zip(case.q_lens, case.k_lens, strict=True))
    yield f"requests {several(len(pairs))}"
    if len(pairs) > 1:
        yield "alike" if len(set(pairs)) == 1 else "ragged"
        for place, queries in (("first", case.q_lens[0]), ("last", case.q_lens[-1])):
            if not queries:
                yield f"{place} without queries"
        if 0 in case.q_lens[1:-1]:
            yield "one between without queries"
        for name, lengths in (("q", case.q_lens), ("k", case.k_lens)):
            yield f"second {name} starts at %64 = {residue(lengths[0], 64)}"
    yield f"queries {several(case.queries)}"
    yield f"keys {several(case.keys)}"


def _values(case: Case) -> Iterator[str]:
    yield f"kind {case.kind}"
    yield case.dtype
    yield case.layout
    yield case.geometry
    yield f"heads {case.heads if case.heads <= 3 else several(case.heads)}"
    if case.topk:
        yield f"top-k %64 = {residue(case.topk, 64)}"
        yield f"top-k fills {several(-(-case.topk // 64))} x 64"
    for option in case.options:
        yield f"+{option}"


def _contract(case: Case) -> Iterator[str]:
    """Clauses of a contract that the case calls upon."""
    options = set(case.options)
    causal = "noncausal" not in options
    lengths = list(zip(case.q_lens, case.k_lens, strict=True))
    if "empty-rows" in options or any(q and not k for q, k in lengths) or any(q > k for q, k in lengths if causal):
        yield "empty rows"
    if "invalid" in options:
        yield "invalid indices"
    if "duplicates" in options:
        yield "duplicates"
    if any(0 < q < k for q, k in lengths):
        yield "causal alignment" if causal else "not causal"
    if case.topk and any(k <= case.topk for _, k in lengths):
        yield "fewer keys than slots"
    if case.kind in ("ties", "constant", "zeros", "grid", "clustered", "signed"):
        yield "ties"
    if case.kind in ("nan", "infs", "nonfinite", "empties", "crowded"):
        yield "not finite"
    if case.kind in ("wide", "negative", "saturated", "spread", "farscales"):
        yield "range"
    for option in ("sink", "lengths", "backwards", "compressed", "q-scale", "padding", "outside", "holes"):
        if option in options:
            yield option


def _route(case: Case) -> Iterator[str]:
    """A step of an engine with these lengths: decodes are requests of few new tokens with a context."""
    decodes = [0 < q <= 4 and q < k for q, k in zip(case.q_lens, case.k_lens, strict=True) if q]
    step = "nothing" if not decodes else "decode" if all(decodes) else "mixed" if any(decodes) else "prefill"
    yield step
    if case.topk:
        within = [k <= case.topk for k in case.k_lens]
        yield f"{step}, indexer {'skipped' if all(within) else 'needed' if not any(within) else 'needed by some'}"


def _config(case: Case) -> str:
    switches = [name for name in ("sink", "lengths", "noncausal", "pages") if name in case.options]
    heads = several(-(-case.heads // 16))
    return " ".join([case.geometry, case.dtype, cache_format_of(case), f"{heads}x16 heads", *switches])
