"""The catalogue as hypotheses: every fault that changes numbers, in every operator that has the sites it is planted at.

A fault at a site of the attention kernels is as possible in the two other ones; one that acts at the edges of tiles is
tried with the tile sizes that kernels use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from ..faults import FAULTS, Fault
from ..faults.simulated import LAYOUTS, simulated
from ..faults.simulated.indexer import INDEXER_SITES
from ..judge.attention_call import compacted
from .expectation import ATTENTION
from .hypothesis import Hypothesis
from .stages import sites_of, stage_of

#: Sites whose faults depend on the tiles.
TILED = frozenset(
    (
        "decay_sum",
        "decay_acc",
        "tiles",
        "stop",
        "diagonal",
        "skip",
        "acc",
        "product",
        "total",
        "slots",
        "inside",
        "seen",
    )
)
#: Queries and keys of a tile beside those of the simulated kernels.
TILINGS = ((16, 16), (64, 64), (32, 128))
#: Sites of the packed indexer that the paged one has as well: its arithmetic, once the keys are there.
_SCORING = {"decode", "heads", "dot", "activate", "weight", "weigh", "total", "outside", "output", "fold"}
#: Bytes of a cache that hypotheses copy.
MOST = 2**28
#: They write to the memory of their caller, and their mark is not a number.
_IN_PLACE = (
    "queries-scaled-in-place",
    "indices-sorted-in-place",
    "scores-masked-in-place",
    "answer-from-recycled-memory",
)


@cache
def catalogue(operator: str) -> tuple[Hypothesis, ...]:
    """All hypotheses of an operator that come from the catalogue, in the tiles of the simulated kernels."""
    return tuple(entry for fault in FAULTS for entry in _entries(fault, operator))


@cache
def tiled(operator: str) -> tuple[Hypothesis, ...]:
    """Those that act at the edges of tiles, in other tiles."""
    return tuple(entry for fault in FAULTS for entry in _tiled(fault, operator))


def numeric(fault: Fault) -> bool:
    """Whether a fault shows in the numbers of one call."""
    marks = fault.expected_check in ("memory", "sequence", "rerun")
    return not marks and fault.planted_in != "triton" and fault.name not in _IN_PLACE


def _entries(fault: Fault, operator: str) -> Iterator[Hypothesis]:
    if not numeric(fault):
        return
    sites = sites_of(fault)
    if fault.operator == operator:
        # What copies the cache is computed on a copy of the rows in use where the cache is mostly addresses.
        copies = operator == "sparse_mqa" and (not sites or "inputs" in sites)
        plain = copies and not {"ds-mla", "dtype=e4m3"} & set(fault.options)

        def predict(**a: Any) -> tuple[Any, ...]:
            if plain and a.get("cache_format", "model") != "model" and fault.planted_in == "reference-pipeline":
                raise ValueError("changes the numbers of a cache that holds bytes")
            return fault.plant()(**(near(a) if copies else a))

        yield _entry(fault, fault.description, predict)
    elif sites and _shared(fault.operator, operator):
        copied = operator == "sparse_mqa" and "inputs" in sites
        yield _entry(
            fault,
            fault.description,
            lambda **a: simulated(operator, **sites)(**(near(a) if copied else a)),
            operator=operator,
        )
    elif fault.operator == "indexer_scores" and operator == "paged_indexer_scores" and set(sites) <= _SCORING:
        changed: dict[str, Any] = dict(sites)
        inner = replace(INDEXER_SITES, **changed)
        yield _entry(fault, fault.description, lambda **a: simulated(operator, scoring=inner)(**a), operator=operator)


def near(a: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a sparse call on the rows in use alone, where the cache is too large to be copied."""
    kv = a["kv"]
    if kv.numel() * kv.element_size() <= MOST:
        return a
    rows, indices = compacted(kv, a["indices"])
    return {**a, "kv": rows if kv.dim() == 2 else rows[:, None], "indices": indices}


def _shared(planted: str, operator: str) -> bool:
    """Whether two operators have their sites in common."""
    return any(planted in group and operator in group for group in (ATTENTION, LAYOUTS))


def _tiled(fault: Fault, operator: str) -> Iterator[Hypothesis]:
    sites = sites_of(fault)
    if not numeric(fault) or fault.operator not in ATTENTION:
        return
    if set(sites) & TILED and "block_k" not in sites and operator in ATTENTION:
        for rows, keys in TILINGS:
            words = f"{fault.description[:-1]} (tiles of {rows} queries and {keys} keys)."
            changed: dict[str, Any] = {**sites, "block_q": rows, "block_k": keys}
            yield _entry(fault, words, lambda changed=changed, **a: simulated(operator, **changed)(**a), 1)


def _entry(fault: Fault, words: str, predict: Any, parameters: int = 0, operator: str = "") -> Hypothesis:
    return Hypothesis(fault.name, stage_of(fault, operator), words, predict, parameters, fixed=True)
