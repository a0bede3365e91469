"""Faults that no operator has: of a layer's routing and state, and of captured graphs.

No kernel call is wrong in them, so the checks of ``check`` have nothing to see. A layer's fault has to break a rule of
the layer contract within random sequences of batches, a graph's fault the check that it names on its own sequence. All
of them together take some fifteen seconds. Four layer faults need several ranks or pages of memory: incidents play
those (``layer.faults.SCENE_FAULTS``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..graphs import matrix
from ..graphs.faults import GRAPH_FAULTS, GraphFault
from ..layer.fault import LayerFault
from ..layer.faults import LAYER_FAULTS
from ..layer.play import rules_broken


@dataclass(frozen=True, slots=True)
class Played:
    """One such fault and what saw it."""

    name: str
    planted_in: Literal["layer", "graph"]
    description: str
    source: str
    expected: tuple[str, ...]
    """Rules or checks of which one must see it."""
    killers: tuple[str, ...]
    where: str
    """The sequence."""
    seconds: float

    @property
    def killed(self) -> bool:
        return bool(set(self.killers) & set(self.expected))

    def record(self) -> dict[str, Any]:
        """As the faults of operators are listed in JSON."""
        return {
            "name": self.name,
            "operator": None,
            "theme": self.planted_in,
            "planted_in": self.planted_in,
            "description": self.description,
            "source": self.source,
            "expected_check": " | ".join(self.expected),
            "status": "killed" if self.killed else "survived",
            "killed": self.killed,
            "killers": self.killers,
            "sole_killer": self.killers[0] if self.killed and len(self.killers) == 1 else None,
            "case": self.where,
            "cases": 1,
            "reason": "",
            "escapes": (),
            "seconds": self.seconds,
        }


def played(
    seed: int,
    layers: Sequence[LayerFault] = LAYER_FAULTS,
    graphs: Sequence[GraphFault] = GRAPH_FAULTS,
    done: Callable[[Played], None] = lambda one: None,
) -> tuple[Played, ...]:
    """Every fault of layers and graphs, on the CPU, with emulated graphs; ``seed`` draws the sequences of batches."""
    found = []
    for one in (*_layers(layers, seed), *_graphs(graphs)):
        found.append(one)
        done(one)
    return tuple(found)


def _layers(faults: Sequence[LayerFault], seed: int) -> Iterator[Played]:
    for fault in faults:
        started = time.perf_counter()
        killers, where = rules_broken(fault, seed)
        seconds = round(time.perf_counter() - started, 3)
        what = f"a layer or its builder: {fault.name.replace('-', ' ')}"
        yield Played(fault.name, "layer", what, fault.source, fault.rules, killers, where, seconds)


def _graphs(faults: Sequence[GraphFault]) -> Iterator[Played]:
    for fault, job in zip(faults, matrix.faults(faults, "cpu"), strict=True):
        started = time.perf_counter()
        seen = matrix.run(job).seen_by
        seconds = round(time.perf_counter() - started, 3)
        yield Played(fault.name, "graph", fault.what, fault.source, (fault.check,), seen, fault.sequence, seconds)


def counted(found: Sequence[Played]) -> dict[str, dict[str, int]]:
    """How many there are of each kind, and how many were killed."""
    kinds = dict.fromkeys(one.planted_in for one in found)
    return {
        kind: {
            "faults": sum(one.planted_in == kind for one in found),
            "killed": sum(one.planted_in == kind and one.killed for one in found),
        }
        for kind in kinds
    }
