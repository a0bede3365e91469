"""Plays an incident: every prompt length in every variant, and the batches that are right even so.

Each step is judged twice, independently: by the layer contract, which looks at what the layers did and not at numbers,
and by the differential check, which looks at numbers and not at what was done: every layer's output against that of the
same layers run with the cure, by the references in fp64.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from ...reference.layer import Parts, SparseMLALayer
from ...reference.routing import Deployment, Rules, decide_route
from ..layer.contract import LayerUnderTest
from ..layer.rig import StepResult
from ..policies import load_rules
from .incident import Companion, Incident, Variant
from .operators import Injected, reference_operators
from .outcome import Detector, Seen, classification, executed, minus_one_share, skipped
from .prompts import prompt
from .retrieval import RetrievalRig, sizes
from .scene import TOKENS, Played, Scene, play, precede, preceding_tokens

#: The variant whose layers give the truth.
_CURE = "mha-branch"


class Replay:
    """An incident on one set of operators; remembers what is the same for several variants."""

    def __init__(self, incident: Incident, operators: Injected, device: str = "cpu") -> None:
        self.incident, self.operators, self.device = incident, operators, device
        self._truths: dict[Scene, Played] = {}

    def run(self, variants: Sequence[Variant], lengths: Sequence[int], *, companions: bool = True) -> Iterator[Seen]:
        """One outcome a variant and length, and after them the companions of faulty variants."""
        for variant in variants:
            start = self._start(variant)
            for length in lengths:
                yield self._length(variant, start, length)
            if variant.faulty and companions:
                for companion in self.incident.companions:
                    yield self._companion(variant, start, companion)

    def outcome(self, variant: Variant, length: int) -> Seen:
        """One prompt length in one variant, which need not be one of the incident's."""
        return self._length(variant, self._start(variant), length)

    def rules(self, variant: Variant) -> Rules:
        """What the engine of a variant lays down."""
        return load_rules(variant.rules)

    def layer(self, parts: Parts, variant: Variant) -> LayerUnderTest:
        """One layer of a variant."""
        return SparseMLALayer(replace(parts, runs_mha=variant.runs_mha))

    def _length(self, variant: Variant, start: RetrievalRig, length: int) -> Seen:
        fails = self.incident.must_fail(variant, length)
        detected = self.incident.fails.detected_by if fails else ()
        seen = self._seen(variant, str(length), Scene((), (length,)), start, companion=False)
        return replace(seen, met=(seen.status, seen.detected_by) == ("FAIL" if fails else "PASS", detected))

    def _companion(self, variant: Variant, start: RetrievalRig, companion: Companion) -> Seen:
        scene = Scene(companion.before, companion.prompts, companion.mode)
        seen = self._seen(variant, companion.name, scene, start, companion=True)
        return replace(seen, met=(seen.status, seen.detected_by) == ("PASS", companion.detected_by))

    def _seen(self, variant: Variant, name: str, scene: Scene, start: RetrievalRig, *, companion: bool) -> Seen:
        rig = copy.deepcopy(start)
        played, truth = play(rig, scene), self._truth(scene)
        right = [tuple(prompt(length)[1][:TOKENS]) for length in scene.lengths]
        worst = self._worst(played.result, truth.result)
        violations = played.result.violations
        detected: list[Detector] = ["layer-contract"] if violations else []
        if worst > 1:
            detected.append("differential")
        place = scene.lengths.index(max(scene.lengths))
        wrong = list(played.said) != right
        return Seen(
            variant=variant.name,
            name=name,
            companion=companion,
            prompt_length=max(scene.lengths),
            classification=classification(played.result),
            route_decided=decide_route(rig.rules, rig.deployment, played.result.step.batch).route.value,
            route_executed=executed(played.result),
            indexer_skipped=skipped(played.result),
            minus_one_share=minus_one_share(played.result),
            tokens=played.said[place],
            expected_tokens=right[place],
            status="FAIL" if wrong or worst > 1 else "PASS",
            detected_by=tuple(detected),
            violations=tuple(map(str, violations)),
            worst=worst,
            met=False,
        )

    def _truth(self, scene: Scene) -> Played:
        """The scene with the cure, by the references in fp64 on the CPU."""
        if scene not in self._truths:
            rig = self._rig(self.incident.variant(_CURE), reference_operators(torch.float64), "cpu")
            self._truths[scene] = play(rig, scene, tokens=1)
        return self._truths[scene]

    def _worst(self, found: StepResult, truth: StepResult) -> float:
        """Largest error of any layer and request over the budget."""
        requests = dict(zip(truth.step.ids, truth.step.batch.requests, strict=True))
        errors = [
            (found.output(number, layer).double().cpu() - truth.output(number, layer)).abs().max()
            for number in requests
            for layer in range(len(truth.outputs))
        ]
        budget = self.operators.budget(max(request.seq_len for request in requests.values()))
        return float(torch.stack(errors).nan_to_num(torch.inf).max()) / budget

    def _start(self, variant: Variant) -> RetrievalRig:
        """The state in which every scene of a variant begins."""
        rig = self._rig(variant, self.operators, self.device)
        if variant.preceded:
            preceding = self.incident.preceding
            precede(rig, preceding.rows, preceding.least_selected)
        return rig

    def _rig(self, variant: Variant, operators: Injected, device: str) -> RetrievalRig:
        facts = {
            **self.incident.deployment,
            **self.operators.dims,
            "wrapper": variant.wrapper,
            "force_mqa": variant.force_mqa,
        }

        deployment = Deployment(**facts)
        return RetrievalRig(
            self.rules(variant),
            deployment,
            sizes(operators.dtype, device, rows=self._most_rows, blocks=self._blocks(variant, deployment)),
            operators=operators.operators,
            make=lambda parts: self.layer(parts, variant),
        )

    def _blocks(self, variant: Variant, deployment: Deployment) -> int:
        """Pages for the largest scene, and for what precedes it; kernels and references take the whole cache."""
        size, preceding = deployment.block_size, self.incident.preceding
        requests = max((len(one.before) + len(one.prompts) for one in self.incident.companions), default=1)
        tokens = self._most_rows + (size + TOKENS) * requests
        if variant.preceded:
            tokens += size + preceding_tokens(preceding.rows, preceding.least_selected, deployment.index_topk)
        return -(-tokens // size)

    @cached_property
    def _most_rows(self) -> int:
        incident = self.incident
        scenes = [sum(companion.prompts) + len(companion.before) for companion in incident.companions]
        return max(*incident.lengths, *scenes, incident.preceding.rows)
