"""Plays an incident of whole layers: every scene in every variant, against the cured layers in fp64.

A scene is judged three times over, independently: by the layer contract, which looks at what was done; by the numbers
of every layer, against the references; by guards around all that the layers allocate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...reference.routing import Deployment, decide_route
from ..calling.memory import guarded_allocations
from ..errors import BadInput
from ..layer.rig import StepResult
from .expected import Outcome
from .outcome import classification, executed, skipped
from .scene_rig import DEPLOYMENT, SceneRig
from .steps_incident import StepsIncident, StepsScene, StepsVariant


@dataclass(slots=True, eq=False)
class _Played:
    """All steps of a scene as one rig ran them."""

    rig: SceneRig
    results: list[StepResult]
    damage: list[str]
    raised: str = ""
    """What ended a faulty layer before its last step."""


class StepsReplay:
    """An incident and the truths of its scenes."""

    def __init__(self, incident: StepsIncident) -> None:
        self.incident = incident
        self._truths: dict[str, list[tuple[Tensor, ...]]] = {}

    def run(self, variants: Sequence[StepsVariant]) -> Iterator[Outcome]:
        """One outcome a variant and scene that is for it."""
        for variant in variants:
            for scene in self.incident.scenes:
                if scene.plays_in(variant):
                    yield self._outcome(variant, scene)

    def _outcome(self, variant: StepsVariant, scene: StepsScene) -> Outcome:
        played = self._play(variant, scene)
        said = _violations(played.results)
        worst = self._worst(played, scene)
        if worst > 1:
            said["differential"] = f"an output is off by {worst:.3g} times what its arithmetic explains"
        if played.damage:
            said["memory"] = played.damage[0]
        if played.raised:
            said["raised"] = played.raised
        fails = variant.faulty and scene.fails
        return Outcome(
            variant=variant.name,
            name=scene.name,
            companion=not scene.fails,
            status="FAIL" if said else "PASS",
            detected_by=tuple(said),
            wanted="FAIL" if fails else "PASS",
            wanted_by=scene.detected_by if fails else (),
            said=tuple(said.values()),
            worst=worst,
            facts=_facts(played),
        )

    def _play(self, variant: StepsVariant, scene: StepsScene) -> _Played:
        facts = {**DEPLOYMENT, **self.incident.deployment, **variant.deployment, **scene.deployment}
        try:
            deployment = Deployment(**facts)
        except (TypeError, ValueError) as error:
            raise BadInput(f"{self.incident.name}, scene {scene.name!r}: deployment {error}") from error
        rig = SceneRig(variant, self.incident.model, self.incident.scaled, deployment)
        results, raised = [], ""
        with guarded_allocations("nan") as memory:
            for queries in scene.steps:
                decoding = all(tokens == 1 and number in rig.lengths for number, tokens in queries)
                try:
                    results.append(rig.step(queries, mode=scene.mode, decoding=decoding, alter=rig.alter))
                except (ValueError, RuntimeError) as error:
                    if not variant.faulty:
                        raise
                    raised = f"{type(error).__name__}: {error}"
                    break
        return _Played(rig, results, memory.damage(), raised)

    def _truth(self, scene: StepsScene) -> list[tuple[Tensor, ...]]:
        """Outputs of every step and layer with the cure and the references."""
        if scene.name not in self._truths:
            cure = replace(self.incident.cure, operators={}, fault="")
            self._truths[scene.name] = [result.outputs for result in self._play(cure, scene).results]
        return self._truths[scene.name]

    def _worst(self, played: _Played, scene: StepsScene) -> float:
        """Largest error of any step and layer over its budget."""
        ratios = [0.0]
        for result, truth in zip(played.results, self._truth(scene), strict=not played.raised):
            for place, (found, right) in enumerate(zip(result.outputs, truth, strict=True)):
                error = float((found - right).abs().nan_to_num(torch.inf).max())
                ratios.append(error / played.rig.budget(result.step, place))
        return max(ratios)


def _violations(results: Sequence[StepResult]) -> dict[str, str]:
    """The first violation of every rule that was broken, in words."""
    said: dict[str, str] = {}
    for result in results:
        for violation in result.violations:
            said.setdefault(violation.rule, str(violation))
    return said


def _facts(played: _Played) -> dict[str, Any]:
    """How the last step ran; nothing where none ended."""
    if not played.results:
        return {}
    last = played.results[-1]
    return {
        "classification": classification(last),
        "route_decided": decide_route(played.rig.rules, played.rig.deployment, last.step.batch).route.value,
        "route_executed": executed(last),
        "indexer_skipped": skipped(last),
    }
