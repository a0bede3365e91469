"""The route of one step through one layer: every decision, in the order it is taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .batch import Batch
from .capability import prefill_backend, use_dense_mha
from .choice import Route, choose_route
from .chunks import ContextChunk, dcp_rows, longest_chunk, plan_chunks
from .decision import Decision
from .deployment import Deployment
from .masked import masked_gate, masked_policy
from .rules import Rules
from .skip import LayerKind, Mode, skip_binding, skip_indexer
from .split import Split, decode_threshold, split_batch, threshold_entry
from .workspace import context_rows, workspace_guard

#: The indexer comes first because masked MHA reads its selection; a captured selection must be ready before the branch.
ORDER = ("index", "ready", "route", "attend")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRoute:
    """Every decision about one batch, each with its reasons."""

    threshold: Decision[int]
    split: Decision[Split]
    backend: Decision[bool]
    dense: Decision[bool]
    gate: Decision[bool]
    policy: Decision[bool]
    guard: Decision[bool]
    route: Decision[Route]


def classify(rules: Rules, deployment: Deployment, batch: Batch) -> tuple[Decision[int], Decision[Split]]:
    """Threshold and split of an arranged batch, as the main attention sees it."""
    threshold = decode_threshold(rules, deployment)
    entry = threshold_entry(rules, deployment.backend, deployment.device_family)
    split = split_batch(
        batch,
        threshold.value,
        require_uniform=entry.require_uniform,
        short_extends_are_decodes=deployment.pcp == 1,
    )
    return threshold, split


def context_plan(rules: Rules, deployment: Deployment, context_lens: list[int]) -> tuple[ContextChunk, ...]:
    """The chunks in which the contexts of the prefills are gathered."""
    cost = partial(dcp_rows, dcp=deployment.dcp, interleave=deployment.cp_interleave)
    return plan_chunks(context_lens, context_rows(rules, deployment).value, deployment.block_size, cost=cost)


def decide_route(rules: Rules, deployment: Deployment, batch: Batch) -> StepRoute:
    """Classify an arranged batch and choose what its prefills run as."""
    threshold, split = classify(rules, deployment, batch)
    cut = split.value
    backend = prefill_backend(rules, deployment)
    dense = use_dense_mha(rules, deployment, cut, has_backend=backend.value)
    contexts = [request.context_len for request in cut.prefills]
    chunks = context_plan(rules, deployment, contexts)
    gate = masked_gate(rules, deployment)
    query_len, seq_len = cut.prefill_max_query_len, cut.prefill_max_seq_len
    policy = masked_policy(rules, deployment, query_len=query_len, seq_len=seq_len, has_context=cut.has_context)
    guard = workspace_guard(rules, len(cut.prefills), query_len, longest_chunk(chunks))
    route = choose_route(
        deployment,
        num_prefills=len(cut.prefills),
        longest=seq_len,
        backend=backend,
        dense=dense,
        gate=gate,
        policy=policy,
        guard=guard,
    )
    return StepRoute(
        threshold=threshold,
        split=split,
        backend=backend,
        dense=dense,
        gate=gate,
        policy=policy,
        guard=guard,
        route=route,
    )


def decide_skip(
    rules: Rules,
    deployment: Deployment,
    step: StepRoute,
    *,
    layer: str,
    kind: LayerKind = "full",
    mode: Mode = "NONE",
    capturing: bool = False,
) -> Decision[bool]:
    """Whether the layer's indexer skips scoring in this step."""
    binding = skip_binding(rules, deployment, layer=layer, kind=kind)
    split = step.split.value
    dense = step.dense.value if split.prefills and step.backend.value else None
    decision = skip_indexer(
        binding.value, mode=mode, dense=dense, num_decode_tokens=split.num_decode_tokens, capturing=capturing
    )
    return decision if decision.value or binding.value else Decision(False, binding.reasons)
