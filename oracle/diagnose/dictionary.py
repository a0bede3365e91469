"""The catalogue as hypotheses: every fault that changes numbers, in every operator that has the sites it is planted at.

A fault at a site of the attention kernels is as possible in the two other ones; one that acts at the edges of tiles is
tried with the tile sizes that kernels use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from ..faults import FAULTS, Fault
from ..faults.simulated import simulated
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
        yield _entry(fault, fault.description, lambda **a: fault.plant()(**a))
    elif sites and fault.operator in ATTENTION and operator in ATTENTION:
        yield _entry(fault, fault.description, lambda **a: simulated(operator, **sites)(**a))


def _tiled(fault: Fault, operator: str) -> Iterator[Hypothesis]:
    sites = sites_of(fault)
    if not numeric(fault) or fault.operator not in ATTENTION:
        return
    if set(sites) & TILED and "block_k" not in sites and operator in ATTENTION:
        for rows, keys in TILINGS:
            words = f"{fault.description[:-1]} (tiles of {rows} queries and {keys} keys)."
            changed: dict[str, Any] = {**sites, "block_q": rows, "block_k": keys}
            yield _entry(fault, words, lambda changed=changed, **a: simulated(operator, **changed)(**a), 1)


def _entry(fault: Fault, words: str, predict: Any, parameters: int = 0) -> Hypothesis:
    return Hypothesis(fault.name, stage_of(fault), words, predict, parameters, fixed=True)
