"""One batch through one layer: every decision with its reasons, in the order it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...reference.routing import (
    Batch,
    Decision,
    Deployment,
    LayerKind,
    Mode,
    Rules,
    Split,
    StepRoute,
    decide_route,
    decide_skip,
    decode_threshold,
    dense_capability,
)
from ..errors import BadInput
from ..reports.plain import plural
from .grammar import batch_text

_LAYER = "layers.0"


@dataclass(frozen=True, slots=True)
class Step:
    """One question, its answer and why; ``under``: the questions that were asked on the way to it."""

    name: str
    answer: str
    reasons: tuple[str, ...]
    under: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The decision chain of one batch.

    ``route``: what was decided for the prefills. ``runs``: what they really run as; a fused layer without an MHA branch
    runs sparse MQA whatever was decided. ``hazards``: what goes wrong if the layer does as these rules say.
    """

    batch: Batch
    decode_tokens: int
    prefill_tokens: int
    route: str
    runs: str
    skip: bool
    capability: bool
    steps: tuple[Step, ...]
    hazards: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "batch": batch_text(self.batch),
            "requests": [{"q": one.query_len, "context": one.context_len} for one in self.batch.requests],
            "decode_tokens": self.decode_tokens,
            "prefill_tokens": self.prefill_tokens,
            "route": self.route,
            "runs": self.runs,
            "skip": self.skip,
            "capability": self.capability,
            "steps": [_step(step) for step in self.steps],
            "hazards": list(self.hazards),
        }


def _step(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "answer": step.answer,
        "reasons": list(step.reasons),
        "steps": [_step(under) for under in step.under],
    }


def explain(
    rules: Rules,
    deployment: Deployment,
    batch: Batch,
    *,
    kind: LayerKind = "full",
    mode: Mode = "NONE",
    capturing: bool = False,
) -> Explanation:
    """Every decision about a batch, which is arranged first as a scheduler does. Raises BadInput."""
    try:
        decided, skip, arranged = _decide(rules, deployment, batch, kind, mode, capturing)
    except ValueError as error:
        raise BadInput(str(error)) from None
    split, runs = decided.split.value, what_runs(rules, deployment, decided)
    capability = dense_capability(rules, deployment)
    ready = _ready(split.num_decode_tokens, runs.value, mode, capturing)
    steps = (
        Step("split", _counts(split), decided.split.reasons, (_of("threshold", decided.threshold),)),
        Step("index", "skipped" if skip.value else "scored", skip.reasons, (_of("capability", capability),)),
        Step("ready", "MQA query made" if ready.value else "no MQA query", ready.reasons),
        Step("route", decided.route.value, decided.route.reasons, _asked(decided)),
        Step("attend", _attends(runs.value), runs.reasons),
    )
    return Explanation(
        batch=arranged,
        decode_tokens=split.num_decode_tokens,
        prefill_tokens=split.num_prefill_tokens,
        route=decided.route.value,
        runs=runs.value,
        skip=skip.value,
        capability=capability.value,
        steps=steps if kind != "shared" else _of_full_layer(steps),
        hazards=hazards(rules, decided, runs.value, skip=skip.value),
    )


def _counts(split: Split) -> str:
    decodes, prefills = split.num_decode_tokens, split.num_prefill_tokens
    return f"{plural(decodes, 'decode token')}, {plural(prefills, 'prefill token')}"


def _decide(
    rules: Rules, deployment: Deployment, batch: Batch, kind: LayerKind, mode: Mode, capturing: bool
) -> tuple[StepRoute, Decision[bool], Batch]:
    arranged, _ = batch.arranged(decode_threshold(rules, deployment).value)
    decided = decide_route(rules, deployment, arranged)
    # A shared layer reads what its full layer selected, so whether that one skips is what matters to it.
    asked: LayerKind = "full" if kind == "shared" else kind
    skip = decide_skip(rules, deployment, decided, layer=_LAYER, kind=asked, mode=mode, capturing=capturing)
    return decided, skip, arranged


def what_runs(rules: Rules, deployment: Deployment, decided: StepRoute) -> Decision[str]:
    """What the prefill tokens run as, given the branch that was decided."""
    route = decided.route.value
    if route in ("dense_mha", "masked_mha") and deployment.wrapper == "fused" and not rules.fused_runs_mha:
        return Decision("sparse_mqa", (f"{route} was decided, but the fused layer has no MHA branch",))
    if route == "none":
        return Decision("none", ("decode tokens run as sparse MQA; there are no others",))
    if route == "sparse_mqa":
        return Decision(route, ("prefill and decode tokens together, as sparse MQA",))
    return Decision(route, (f"prefill tokens as {route}, decode tokens, if any, as sparse MQA",))


def hazards(rules: Rules, decided: StepRoute, runs: str, *, skip: bool) -> tuple[str, ...]:
    """What goes wrong if the layer does as decided; empty for sound rules."""
    found = []
    if skip and runs in ("sparse_mqa", "masked_mha"):
        found.append(f"the indexer skips, yet {runs} reads its selection: nobody wrote it in this step")
    workspace = rules.mask_workspace
    if runs == "masked_mha" and workspace is not None and not workspace.guarded:
        found += [reason for reason in decided.guard.reasons if "overruns" in reason]
    return tuple(found)


def _ready(decode_tokens: int, runs: str, mode: Mode, capturing: bool) -> Decision[bool]:
    """Whether the absorbed MQA query is made before the branch: a captured graph may be replayed on another route."""
    needs = (
        (mode == "FULL", "full graph: its replays may take another route"),
        (capturing, "the stream is capturing: replays may take another route"),
        (decode_tokens > 0, "decode tokens run as MQA"),
        (runs in ("sparse_mqa", "none"), "the prefills run as MQA" if runs == "sparse_mqa" else "no prefill"),
    )
    why = tuple(sentence for holds, sentence in needs if holds)
    return Decision(bool(why), why or (f"{runs} alone, and no graph",))


def _asked(decided: StepRoute) -> tuple[Step, ...]:
    questions = (
        ("prefill backend", decided.backend),
        ("dense MHA", decided.dense),
        ("masked MHA: gate", decided.gate),
        ("masked MHA: policy", decided.policy),
        ("masked MHA: guard", decided.guard),
    )
    return tuple(_of(name, decision) for name, decision in questions) if decided.split.value.prefills else ()


def _of(name: str, decision: Decision[Any]) -> Step:
    value = decision.value
    return Step(name, ("yes" if value else "no") if isinstance(value, bool) else str(value), decision.reasons)


def _attends(runs: str) -> str:
    return {"none": "MQA", "sparse_mqa": "MQA"}.get(runs, f"MHA ({runs})")


def _of_full_layer(steps: Sequence[Step]) -> tuple[Step, ...]:
    index = replace(steps[1], reasons=(*steps[1].reasons, "decided in the full layer before this shared one"))
    return (steps[0], index, *steps[2:])
