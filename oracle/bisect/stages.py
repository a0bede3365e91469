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
from ..errors import BadInput
from ..policies import load_rules
from ..replay.incident import Incident, Variant
from ..replay.operators import Injected
from .look import Look
from .mixture import Mixture

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

    mixture = Mixture(incident, operators)

    def look(name: str, base: Variant, other: Variant, stages: frozenset[str]) -> Look:
        found = _look(mixture, base, other, stages, length)
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


def _look(mixture: Mixture, base: Variant, other: Variant, stages: frozenset[str], length: int) -> Look:
    """``base`` with some stages of another variant."""

    def layer(parts: Parts) -> SparseMLALayer:
        own, taken = (_own(parts, one) for one in (base, other))
        for stage in stages:
            for method in STAGES[stage]:
                setattr(own, method, getattr(taken, method))
        return own

    built = other if "metadata" in stages else base
    try:
        return mixture.look(base, length, rules=load_rules(built.rules), layer=layer, force_mqa=built.force_mqa)
    except (ValueError, MissingMetadata) as error:
        # Two stages that do not fit: what one prepares the other cannot use.
        return Look("bad", f"ERROR {type(error).__name__}", detail=str(error))


def _own(parts: Parts, variant: Variant) -> SparseMLALayer:
    switches: dict[str, Any] = {"wrapper": variant.wrapper, "force_mqa": variant.force_mqa}
    deployment = replace(parts.deployment, **switches)
    return SparseMLALayer(
        replace(parts, rules=load_rules(variant.rules), deployment=deployment, runs_mha=variant.runs_mha)
    )
