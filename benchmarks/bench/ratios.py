"""Ours against the others, shape by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .measure import Result

#: Backends written here; every other one is somebody else's kernel, or plain torch.
OURS = ("triton", "hopper")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as a peer our fastest kernel is on one shape."""

    case: str
    operator: str
    ours: str
    peer: str
    ratio: float
    """Seconds of the peer over ours: above 1 ours is faster."""
    low: float
    """The ratio at the unfavourable quartiles of both."""
    high: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_ours(implementation: str) -> bool:
    return implementation.partition("/")[2].split("-")[0] in OURS


def ratios(results: Iterable[Result]) -> list[Ratio]:
    """The fastest of ours against each peer that was timed on the same shape."""
    shapes: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.timing is not None:
            shapes[result.case.id].append(result)
    found = []
    for case, timed in shapes.items():
        ours = [result for result in timed if is_ours(result.implementation)]
        if not ours:
            continue
        best = min(ours, key=_median)
        for peer in timed:
            if not is_ours(peer.implementation):
                found.append(_ratio(case, best, peer))
    return found


def _median(result: Result) -> float:
    assert result.timing is not None
    return result.timing.median


def _ratio(case: str, best: Result, peer: Result) -> Ratio:
    assert best.timing is not None and peer.timing is not None
    return Ratio(
        case, peer.case.operator, best.implementation, peer.implementation,
        peer.timing.median / best.timing.median, peer.timing.low / best.timing.high, peer.timing.high / best.timing.low,
    )  # fmt: skip
