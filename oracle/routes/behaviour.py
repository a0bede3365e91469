"""What a batch gets from rules, without the reasons: what maps draw and comparisons compare."""

from __future__ import annotations

from dataclasses import dataclass

from ...reference.routing import Batch, Deployment, Rules, decide_route, decide_skip, decode_threshold
from .explain import hazards, what_runs

#: A letter for a cell of a map, and what it means.
LETTERS = {
    ".": "decode: sparse MQA, scored",
    "D": "dense MHA, the indexer skips",
    "d": "dense MHA, the indexer scores all the same",
    "M": "masked MHA",
    "Q": "sparse MQA",
    "!": "reads a selection that nobody wrote, or a mask that overruns",
    " ": "no such batch",
}


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Split, route, what really runs, the skip, and whether a hazard comes of it."""

    split: tuple[int, int]
    """(decode requests, prefill requests)"""
    route: str
    runs: str
    skip: bool
    hazard: bool

    @property
    def letter(self) -> str:
        if self.hazard:
            return "!"
        if self.runs == "dense_mha":
            return "D" if self.skip else "d"
        return {"none": ".", "masked_mha": "M", "sparse_mqa": "Q"}[self.runs]

    def __str__(self) -> str:
        route = self.route if self.route == self.runs else f"{self.route} decided, {self.runs} run"
        told = "decode" if self.route == "none" else route
        return f"{told}, {'skipped' if self.skip else 'scored'}"


def behave(rules: Rules, deployment: Deployment, batch: Batch) -> Behaviour:
    """The behaviour of a full layer in an eager step. Raises ValueError where no such step can be."""
    arranged, _ = batch.arranged(decode_threshold(rules, deployment).value)
    decided = decide_route(rules, deployment, arranged)
    split, runs = decided.split.value, what_runs(rules, deployment, decided).value
    skip = decide_skip(rules, deployment, decided, layer="layers.0").value
    return Behaviour(
        split=(len(split.decodes), len(split.prefills)),
        route=decided.route.value,
        runs=runs,
        skip=skip,
        hazard=bool(hazards(rules, decided, runs, skip=skip)),
    )
