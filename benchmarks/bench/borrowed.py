"""What it costs to route by the table of another machine: vLLM's, measured on a B200, against times measured here.

Source: vllm-project/vllm#53785, whose tables are in ``fixtures/policies``; its crossovers for GLM-5.2 and FlashMLA are
8.5K, 20.8K, 52.8K and 116.8K tokens at TP 1, 2, 4 and 8, and masked MHA 4.70 times as fast at TP 4 and 4K.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...oracle.geometry import Geometry
from ...oracle.policies import load_rules
from ...reference.routing import Interval
from .point import Point

RULES = "vllm-0.33"
BACKEND = "FLASHMLA_SPARSE"
#: Fresh prompts up to which masked MHA won on a B200, by tensor-parallel size: of another machine and other kernels.
PUBLISHED = {1: 8500, 2: 20800, 4: 52800, 8: 116800}


@dataclass(frozen=True, slots=True)
class Cost:
    """One measured length that the borrowed table sends another way than the faster one."""

    tensor_parallel: int
    query: int
    seq: int
    borrowed: str
    """The route by the table: MHA or MQA."""
    seconds: float
    best: float
    """Median of the faster route."""

    @property
    def slower(self) -> float:
        """How much longer it takes, 0.1 for ten per cent."""
        return self.seconds / self.best - 1.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"slower": self.slower}


def limits(geometry: Geometry, tensor_parallel: int) -> list[tuple[int, int]]:
    """(query, sequence) at which the borrowed table takes masked MHA for the last time."""
    pure, context = _intervals(geometry, tensor_parallel)
    return [(seq, seq) for seq, _ in pure] + [(least, seq) for seq, least in context if least < seq]


def costs(geometry: Geometry, tensor_parallel: int, points: Iterable[Point]) -> list[Cost]:
    """Points whose faster route, beyond noise, is not the one that the borrowed table takes."""
    pure, context = _intervals(geometry, tensor_parallel)
    found = []
    for point in points:
        table = pure if point.query == point.seq else context
        taken = "MHA" if any(point.seq <= seq and point.query >= least for seq, least in table) else "MQA"
        if point.outcome not in (taken, "noise"):
            times = {"MHA": point.mha.median, "MQA": point.mqa.median}
            found.append(Cost(tensor_parallel, point.query, point.seq, taken, times[taken], times[point.outcome]))
    return found


def _intervals(geometry: Geometry, tensor_parallel: int) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    row = load_rules(RULES).tables.get((geometry.qk_head_dim, geometry.v_head_dim, BACKEND, tensor_parallel))
    if row is None:
        return (), ()
    return row.pure, row.pure if row.context is None else row.context
