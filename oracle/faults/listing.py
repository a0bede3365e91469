"""One list of every planted fault: of operators, of layers, and of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..graphs.faults import GRAPH_FAULTS
from ..layer.faults import LAYER_FAULTS
from .catalogue import FAULTS


@dataclass(frozen=True, slots=True)
class Listed:
    """A fault of any catalogue."""

    name: str
    kind: Literal["operator", "layer", "graph"]
    planted_in: str
    """The operator; ``layer``; or the sequence of batches that shows it."""
    source: str
    expected: tuple[str, ...]
    """The checks of which one must see it."""


def every_fault() -> tuple[Listed, ...]:
    """Names are distinct within a kind."""
    return (
        *(Listed(one.name, "operator", one.operator, one.source, (one.expected_check,)) for one in FAULTS),
        *(Listed(one.name, "layer", "layer", one.source, one.rules) for one in LAYER_FAULTS),
        *(Listed(one.name, "graph", one.sequence, one.source, (one.check,)) for one in GRAPH_FAULTS),
    )
