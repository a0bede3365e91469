"""What the layer contract is checked on, and what a breach of it looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ...reference.layer import OperatorCall, Range, StepBatch, Trace
from ...reference.routing import Decision, Deployment, Rules, StepRoute

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: where it was broken and which two parties disagree."""

    rule: str
    step: int
    layer: str
    rows: tuple[Range, ...]
    """Half-open ranges of token rows; empty where the whole step is meant."""
    parties: tuple[str, str]
    """What the one said, what the other did."""

    def __str__(self) -> str:
        rows = ", ".join(f"{start}..{stop - 1}" for start, stop in self.rows) or "all"
        return f"{self.rule}: step {self.step}, {self.layer}, rows {rows}: {self.parties[0]}; but {self.parties[1]}"


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """A layer's trace beside what the scheduler and the rules say about the step."""

    trace: Trace
    step: StepBatch
    rules: Rules
    deployment: Deployment
    route: StepRoute
    skip: Decision[bool]
    source: Trace | None
    """The layer whose selection this one reads: itself, or for a shared layer the last full one; None: none ran."""

    def events(self, kind: type[E]) -> Iterator[E]:
        """The events of one kind, in order."""
        return (event for event in self.trace.events if isinstance(event, kind))

    def calls(self, *operators: str) -> list[OperatorCall]:
        return [call for call in self.events(OperatorCall) if call.operator in operators]

    def owners(self) -> tuple[Tensor, Tensor]:
        """Request id and position of every token, int64 [s]."""
        number, positions = self.step.token_rows()
        return torch.tensor(self.step.ids)[number], positions

    def violation(self, rule: str, said: str, did: str, rows: Tensor | Range | None = None) -> Violation:
        """A breach by this layer; ``rows`` are ascending row numbers, a range, or None for the whole step."""
        whole: tuple[Range, ...] = () if rows is None or isinstance(rows, Tensor) else (rows,)
        ranges = to_ranges(rows) if isinstance(rows, Tensor) else whole
        return Violation(rule, self.step.step, self.trace.layer, ranges, (said, did))


def to_ranges(rows: Tensor) -> tuple[Range, ...]:
    """Half-open ranges that cover ascending row numbers."""
    numbers: list[int] = rows.tolist()
    ranges: list[Range] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)


Rule = Callable[[Evidence], Iterator[Violation]]
