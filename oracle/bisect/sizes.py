"""The axis of one size of a case: query or key length, heads, top-k; everything else stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..case import Case
from ..errors import BadInput, unknown
from .look import Look
from .probe import Probe, shell

FIELDS = ("q", "k", "heads", "topk", "seed")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values of one field of a case from one end to the other; ``q`` and ``k`` mean the length of one request.

    Raises BadInput for an unknown field or request, or values that cannot be.
    """

    case: Case
    field: str
    low: int
    high: int
    probe: Probe
    request: int = 0

    def __post_init__(self) -> None:
        if self.field not in FIELDS:
            raise unknown("size", self.field, FIELDS)
        if not 0 <= self.request < len(self.case.q_lens):
            raise BadInput(f"--request {self.request}: the case has {len(self.case.q_lens)} requests, counted from 0")
        if not 0 <= self.low < self.high:
            raise BadInput(f"sizes: expected two different values of 0 or more, got {self.low} and {self.high}")

    @property
    def name(self) -> str:
        return f"sizes of {self.field}"

    @property
    def points(self) -> Sequence[str]:
        return [str(value) for value in range(self.low, self.high + 1)]

    def at(self, value: int) -> Case:
        """The case with that size. Raises BadInput where it cannot be."""
        if self.field in ("q", "k"):
            lengths = list(getattr(self.case, f"{self.field}_lens"))
            lengths[self.request] = value
            changed: dict[str, Any] = {f"{self.field}_lens": tuple(lengths)}
        else:
            changed = {self.field: value}
        return replace(self.case, **changed)

    def look(self, point: str, log: Callable[[str], str]) -> Look:
        return self._probe(point).look(cwd=None, env=os.environ, log=log(point))

    def command(self, point: str) -> str:
        return shell(["attnoracle", *self._probe(point).arguments()])

    def away(self) -> Sizes:
        return self

    def _probe(self, point: str) -> Probe:
        return replace(self.probe, case=self.at(int(point)).id)
