"""Stages of an incident's layers: which of them, exchanged, cures the bad variant and breaks the good one.

A layer runs its stages in order: metadata (the builder's, before any layer), write_caches, prepare, index, route,
attend. A mixed layer takes each stage from one of two variants that share weights and caches. A stage whose exchange
alone cures the bad variant and alone breaks the good one is where they part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...reference.layer import MissingMetadata, Parts, SparseMLALayer
from ...reference.routing import Rules
from ..errors import BadInput
from ..layer.contract import LayerUnderTest
from ..policies import load_rules
from ..replay.incident import Incident, Variant
from ..replay.operators import Injected
from ..replay.replay import Replay
from .look import Look

#: Stage -> the methods of the layer that are it.
STAGES: dict[str, tuple[str, ...]] = {
    "metadata": (),
    "write_caches": ("write_caches",),
    "prepare": ("must_absorb", "prepare"),
    "index": ("index",),
    "route": ("route",),
    "attend": ("attend",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One stage exchanged, both ways."""

    stage: str
    in_bad: Look
    """The bad variant with this stage of the good one."""
    in_good: Look
    """The good variant with this stage of the bad one."""

    @property
    def cures(self) -> bool:
        return self.in_bad.label == "good"

    @property
    def breaks(self) -> bool:
        return self.in_good.label == "bad"

    @property
    def culprit(self) -> bool:
        return self.cures and self.breaks


class _Mixed(Replay):
    """The incident in ``base``, with some stages of another variant."""

    def __init__(
        self, incident: Incident, operators: Injected, base: Variant, other: Variant, stages: frozenset[str]
    ) -> None:
        super().__init__(incident, operators)
        self._base, self._other, self._stages = base, other, stages

    def rules(self, variant: Variant) -> Rules:
        of = self._other if variant.name == _MIXED and "metadata" in self._stages else variant
        return load_rules(of.rules)

    def layer(self, parts: Parts, variant: Variant) -> LayerUnderTest:
        if variant.name != _MIXED:
            return super().layer(parts, variant)
        own, taken = (self._own(parts, one) for one in (self._base, self._other))
        for stage in self._stages:
            for method in STAGES[stage]:
                setattr(own, method, getattr(taken, method))
        return own

    def _own(self, parts: Parts, variant: Variant) -> SparseMLALayer:
        switches: dict[str, Any] = {"wrapper": variant.wrapper, "force_mqa": variant.force_mqa}
        deployment = replace(parts.deployment, **switches)
        rules = load_rules(variant.rules)
        return SparseMLALayer(replace(parts, rules=rules, deployment=deployment, runs_mha=variant.runs_mha))


_MIXED = "mixed"


def localise(
    incident: Incident,
    operators: Injected,
    good: Variant,
    bad: Variant,
    length: int,
    on_look: Callable[[str, Look], None] = lambda name, look: None,
) -> tuple[Exchanged, ...]:
    """Every stage exchanged alone, in the order in which they run.

    Raises BadInput where the good variant fails at that length, or the bad one passes.
    """

    def look(name: str, base: Variant, other: Variant, stages: frozenset[str]) -> Look:
        found = _look(incident, operators, base, other, stages, length)
        on_look(name, found)
        return found

    ends = tuple(look(one.name, one, one, frozenset()).label for one in (good, bad))
    if ends != ("good", "bad"):
        raise BadInput(
            f"bisect stages: at {length} tokens expected {good.name} to pass and {bad.name} to fail, "
            f"got {good.name} {ends[0]} and {bad.name} {ends[1]}"
        )
    return tuple(
        Exchanged(
            stage=stage,
            in_bad=look(f"{bad.name} with {stage} of {good.name}", bad, good, frozenset({stage})),
            in_good=look(f"{good.name} with {stage} of {bad.name}", good, bad, frozenset({stage})),
        )
        for stage in STAGES
    )


def _look(
    incident: Incident, operators: Injected, base: Variant, other: Variant, stages: frozenset[str], length: int
) -> Look:
    forced: dict[str, Any] = {"force_mqa": other.force_mqa} if "metadata" in stages else {}
    variant = replace(base, name=_MIXED, faulty=False, **forced)
    try:
        seen = _Mixed(incident, operators, base, other, stages).outcome(variant, length)
    except (ValueError, MissingMetadata) as error:
        # Two stages that do not fit: what one prepares the other cannot use.
        return Look("bad", f"ERROR {type(error).__name__}", detail=str(error))
    if seen.status == "PASS":
        return Look("good")
    return Look("bad", " ".join(("FAIL", *seen.detected_by)), seen.worst)
