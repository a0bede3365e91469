"""The branch that a layer takes, read from the metadata of the step (vLLM ``_use_sparse_mha`` and ``forward_mha``)."""

from __future__ import annotations

from ..routing import (
    Decision,
    Deployment,
    Route,
    Rules,
    choose_route,
    longest_chunk,
    masked_gate,
    masked_policy,
    workspace_guard,
)
from .events import GuardAsked
from .metadata import StepMetadata, need
from .trace import Trace


def dispatch(rules: Rules, deployment: Deployment, metadata: StepMetadata, trace: Trace) -> Decision[Route]:
    """What the prefill tokens should run as. Raises MissingMetadata for a field that is needed and was dropped."""
    num_prefills = need(metadata, "num_prefills")
    longest = need(metadata, "prefill_max_seq_len")
    prefill = metadata.prefill
    if prefill is None:
        return choose_without_prefill(num_prefills)
    dense, query_len = need(prefill, "use_dense_mha"), need(prefill, "max_query_len")
    chunks = need(prefill, "chunks")
    guard = workspace_guard(rules, num_prefills, query_len, longest_chunk(chunks))
    route = choose_route(
        deployment,
        num_prefills=num_prefills,
        longest=longest,
        backend=Decision(True, ("prefill metadata is there",)),
        dense=Decision(dense, (f"use_dense_mha is {dense}",)),
        gate=masked_gate(rules, deployment),
        policy=masked_policy(rules, deployment, query_len=query_len, seq_len=longest, has_context=bool(chunks)),
        guard=guard,
    )
    if not dense:
        trace.events.append(GuardAsked(guard))
    return route


def choose_without_prefill(num_prefills: int) -> Decision[Route]:
    """Without prefill metadata everything is sparse MQA."""
    if not num_prefills:
        return Decision("none", ("every request counts as decode",))
    return Decision("sparse_mqa", ("no prefill metadata: the layer has no dense prefill backend",))
