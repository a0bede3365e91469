"""Implementations known to be good: the shipped ones, and the unchanged simulated kernels in several configurations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

from ...optimized.catalogue import IMPLEMENTATIONS
from ...optimized.implementation import Implementation
from ..case import Case
from ..config import load
from ..errors import unknown
from ..facts import facts
from ..faults.simulated import LAYOUTS, SIMULATED, simulated
from ..guests.known import TOO_SLOW
from ..suites import suite

#: Distance between the seeds of two rounds of the suite; a suite's own seeds span less.
SEED_STRIDE = 1000
#: A public kernel that is wrong where a batch has queries without keys (docs/findings.md): what it is told there is no
#: false alarm.
FOUND_WRONG = ("dense_mha/flashinfer-fa3",)
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "simulated": {},
    "simulated-3-splits": {"splits": 3},
    "simulated-7-splits-32-keys": {"splits": 7, "block_k": 32},
    "simulated-16x128": {"block_q": 16, "block_k": 128},
}
_TILED = ("dense_mha", "masked_mha", "sparse_mqa")
_UNTILED = ("indexer_scores", "paged_indexer_scores", "topk_select", "merge_lse", *LAYOUTS)


@cache
def good_implementations() -> dict[str, Implementation]:
    """By name; whether one runs on this machine is its own ``supports``."""
    shipped = {one.name: one for one in IMPLEMENTATIONS if one.name not in (*TOO_SLOW, *FOUND_WRONG)}
    of_tiles = [(operator, name) for operator in _TILED for name in _CONFIGURATIONS]
    plain = [(operator, "simulated") for operator in _UNTILED]
    made = (_simulated(operator, name) for operator, name in of_tiles + plain)
    return shipped | {one.name: one for one in made}


def good(name: str) -> Implementation:
    """The implementation of that name. Raises BadInput with the nearest names."""
    if name not in good_implementations():
        raise unknown("implementation known to be good", name, good_implementations())
    return good_implementations()[name]


def _simulated(operator: str, configuration: str) -> Implementation:
    kernel = simulated(operator, **_CONFIGURATIONS[configuration])
    return Implementation(f"{operator}/{configuration}", SIMULATED, lambda facts: None, lambda: kernel)


def good_runs(count: int, seed: int, device: str) -> list[tuple[Case, str]]:
    """``count`` pairs of a quick case and an implementation that supports it, spread evenly over both."""
    pairs: list[tuple[Case, str]] = []
    rounds = 0
    while len(pairs) < count:
        pairs += _round(seed + rounds * SEED_STRIDE, device)
        rounds += 1
    return [pairs[i * len(pairs) // count] for i in range(count)]


def _round(seed: int, device: str) -> Iterator[tuple[Case, str]]:
    """Every pair of one seed of the suite; operator by operator, so that even steps reach all of them."""
    supports = partial(_supports, device=device)
    for name, one in good_implementations().items():
        for case in suite("quick", seed):
            if case.operator == one.operator and supports(one, case):
                yield case, name


def _supports(one: Implementation, case: Case, device: str) -> bool:
    return one.supports(facts(case, load(case.geometry), device)) is None
