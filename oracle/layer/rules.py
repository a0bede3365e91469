"""The rules of the layer contract: each looks at the trace of one layer in one step and yields what it violates.

A violation names the two parties that disagree, because the worst failures of such layers were never one wrong party
but several that each made sense: metadata chose dense MHA, the indexer skipped, the layer ran sparse MQA
(vllm-project/vllm#52512).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...reference.layer import CacheWrite, GuardAsked, OperatorCall, Reached, SkipDecided
from ...reference.routing import ORDER, context_plan, longest_chunk, mask_bytes
from .evidence import Evidence, Violation

ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")
SCORING = ("indexer_scores", "topk_select")


def route_executed(evidence: Evidence) -> Iterator[Violation]:
    """Prefill tokens run as the rules decided, decode tokens as sparse MQA, and every token exactly once."""
    split, decided = evidence.route.split.value, evidence.route.route
    total = evidence.step.batch.num_tokens
    cut = split.num_decode_tokens
    said = f"the rules decided {decided.value} ({'; '.join(decided.reasons)})"
    seen = torch.zeros(total, dtype=torch.int64)
    for operator in ATTENTION:
        ran = torch.zeros(total, dtype=torch.bool)
        for call in evidence.calls(operator):
            ran[slice(*call.tokens)] = True
        seen += ran
        wanted = torch.zeros(total, dtype=torch.bool)
        if operator == "sparse_mqa":
            wanted[:cut] = True
        if operator == decided.value:
            wanted[cut:] = True
        rows = (ran & ~wanted).nonzero().flatten()
        if len(rows):
            what = said if int(rows[-1]) >= cut else "decode tokens run as sparse_mqa"
            yield evidence.violation("route", what, f"the layer ran {operator}", rows)
    for count, words in ((0, "no attention operator ran"), (2, "more than one attention operator ran")):
        rows = ((seen == 0) if count == 0 else (seen >= 2)).nonzero().flatten()
        if len(rows):
            yield evidence.violation("coverage", "every token attends once", words, rows)


def capability(evidence: Evidence) -> Iterator[Violation]:
    """What the layer declares it can do is what it does where the step asks for it."""
    trace = evidence.trace
    calls = evidence.calls("dense_mha", "masked_mha")
    wants = evidence.route.route.value in ("dense_mha", "masked_mha")
    if wants and trace.supports_dense and not trace.runs_mha:
        rows = (evidence.route.split.value.num_decode_tokens, evidence.step.batch.num_tokens)
        yield evidence.violation("capability", "the layer declares dense prefill", "it has no MHA branch", rows)
    if calls and not trace.supports_dense:
        yield evidence.violation("capability", "the layer declares no dense prefill", "it ran MHA", calls[0].tokens)


def order(evidence: Evidence) -> Iterator[Violation]:
    """index, ready, route, attend; layers without an indexer start at route."""
    stages = [event.stage for event in evidence.events(Reached)]
    wanted = [stage for stage in ORDER if evidence.trace.kind != "shared" or stage in ("route", "attend")]
    if stages != wanted:
        yield evidence.violation("order", f"the order is {', '.join(wanted)}", f"the layer went {', '.join(stages)}")
    stage = ""
    for event in evidence.trace.events:
        if isinstance(event, Reached):
            stage = event.stage
        elif isinstance(event, OperatorCall):
            home = {"index"} if event.operator in SCORING else {"attend"}
            if event.operator in (*SCORING, *ATTENTION) and stage not in home:
                did = f"{event.operator} ran in stage {stage or 'none'}"
                yield evidence.violation("order", f"{event.operator} belongs to {home.pop()}", did, event.tokens)


def skip_allowed(evidence: Evidence) -> Iterator[Violation]:
    """The indexer skips only where the rules let it, and scores unless it skips."""
    if evidence.trace.kind == "shared":
        return
    skipped = [event.decision for event in evidence.events(SkipDecided)]
    if len(skipped) != 1:
        yield evidence.violation("skip", "the indexer decides once a step", f"it decided {len(skipped)} times")
    for decision in skipped:
        if decision.value and not evidence.skip.value:
            reasons = "; ".join(evidence.skip.reasons)
            did = f"the indexer skipped ({'; '.join(decision.reasons)})"
            yield evidence.violation("skip", f"the rules do not let it skip ({reasons})", did)
        if not decision.value and not evidence.calls("topk_select"):
            yield evidence.violation("skip", "the indexer said it scores", "it selected nothing")


def caches_written(evidence: Evidence) -> Iterator[Violation]:
    """Every token's latent and indexer key is cached before anything is decided, skipped or not."""
    total = evidence.step.batch.num_tokens
    caches = ("latent",) if evidence.trace.kind == "shared" else ("latent", "index")
    for cache in caches:
        writes = [event for event in evidence.events(CacheWrite) if event.cache == cache]
        slots = torch.cat([write.slots for write in writes]) if writes else torch.empty(0, dtype=torch.int64)
        did = f"{int((slots >= 0).sum())} rows were written"
        if len(slots) != total or bool((slots < 0).any()) or len(set(slots.tolist())) != total:
            yield evidence.violation(f"{cache}-cache", f"{total} new tokens are cached, each in its own row", did)
        decided = next((n for n, event in enumerate(evidence.trace.events) if isinstance(event, Reached)), 0)
        late = [n for n, event in enumerate(evidence.trace.events) if event in writes and n > decided]
        if late:
            did = "it was written after the layer began to decide"
            yield evidence.violation(f"{cache}-cache", "the cache is written before the skip test", did)


def query_fits(evidence: Evidence) -> Iterator[Violation]:
    """The prepared query is of the branch's form: absorbed or not, of its width, rotated exactly once."""
    deployment = evidence.deployment
    for call in evidence.calls(*ATTENTION):
        absorbed = call.operator == "sparse_mqa"
        width = deployment.latent_dim if absorbed else deployment.qk_head_dim
        form = call.query
        said = (
            f"{call.operator} takes an {'absorbed' if absorbed else 'unabsorbed'} query of width {width}, rotated once"
        )
        if form is None:
            yield evidence.violation("query", said, "it was given none", call.tokens)
        elif (form.absorbed, form.width, form.rotations) != (absorbed, width, 1) or (form.packed and not absorbed):
            did = f"it was given width {form.width}, absorbed {form.absorbed}, packed {form.packed}"
            yield evidence.violation("query", said, f"{did}, rotated {form.rotations} times", call.tokens)


def guard_asked(evidence: Evidence) -> Iterator[Violation]:
    """Masked MHA runs only after the workspace guard said that its masks fit."""
    allowed = False
    for event in evidence.trace.events:
        if isinstance(event, GuardAsked):
            allowed = event.decision.value
            if allowed and not evidence.route.guard.value:
                said = "; ".join(evidence.route.guard.reasons)
                yield evidence.violation("guard", said, f"the layer was told {'; '.join(event.decision.reasons)}")
        elif isinstance(event, OperatorCall) and event.operator == "masked_mha" and not allowed:
            said = "the workspace guard is asked before masked MHA"
            yield evidence.violation("guard", said, "it was not asked or said no", event.tokens)


def mask_fits(evidence: Evidence) -> Iterator[Violation]:
    """The masks of masked MHA fit their workspace, whatever the guard said and whether there is one."""
    workspace = evidence.rules.mask_workspace
    calls = evidence.calls("masked_mha")
    if not calls or workspace is None:
        return
    split = evidence.route.split.value
    contexts = [request.context_len for request in split.prefills]
    query_len = split.prefill_max_query_len
    longest = longest_chunk(context_plan(evidence.rules, evidence.deployment, contexts))
    needed = mask_bytes(workspace, len(split.prefills), query_len, max(query_len, longest))
    if needed > workspace.max_bytes:
        said = f"the mask workspace holds {workspace.max_bytes} bytes"
        yield evidence.violation("mask-overrun", said, f"the masks take {needed} bytes", calls[0].tokens)
