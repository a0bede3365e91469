"""A sparse-MLA attention layer, from projected inputs to the output before o_proj.

    write caches -> index (score or skip) -> ready -> route -> attend (MHA or MQA)

Operators are injected, so the same layer runs on any implementation; the parts decide which version of which engine it
behaves like. Every run returns what was done as a trace. Methods are the seams at which a variant may differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..routing import Decision, Route
from .dispatch import dispatch
from .events import Range, Reached, Routed
from .indexer import run_indexer
from .inputs import LayerInputs
from .metadata import StepMetadata, need
from .mha import attend_mha
from .mqa import attend_mqa
from .parts import Parts
from .query import PreparedQuery, Query, mha_query, prepare_query
from .trace import Trace
from .writes import write_caches

MHA = ("dense_mha", "masked_mha")


class SparseMLALayer:
    """One layer; its state are the caches and the shared buffer of its parts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def forward(self, inputs: LayerInputs, metadata: StepMetadata | None) -> tuple[Tensor, Trace]:
        """Output [s, h, v] and the trace. Without metadata (a dummy run) nothing is written and the output is zero."""
        trace = self.new_trace(metadata)
        if metadata is None:
            positions = torch.arange(len(inputs.q), device=inputs.q.device)
            self.prepare(inputs, positions, absorb=True)
            return inputs.q.new_zeros(*inputs.q.shape[:2], self.parts.w_uv.shape[1]), trace
        k_pe, prepared = self.before(inputs, metadata, trace)
        return self.after(inputs, k_pe, prepared, metadata, trace), trace

    def before(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> tuple[Tensor, PreparedQuery]:
        """What a graph captures in pieces too: caches, rotated k_pe [s, r] and the query, whatever the route."""
        positions = need(metadata, "positions")
        k_pe = self.parts.rotate(inputs.k_pe, positions).to(inputs.k_pe.dtype)
        self.write_caches(inputs, k_pe, metadata, trace)
        return k_pe, self.prepare(inputs, positions, absorb=self.must_absorb(metadata))

    def after(
        self, inputs: LayerInputs, k_pe: Tensor, prepared: PreparedQuery, metadata: StepMetadata, trace: Trace
    ) -> Tensor:
        """What a graph in pieces leaves to every step: the indexer, the route and the attention, [s, h, v]."""
        if self.parts.kind != "shared":
            trace.events.append(Reached("index"))
            self.index(inputs, metadata, trace)
            trace.events.append(Reached("ready"))
        trace.events.append(Reached("route"))
        route = self.route(metadata, trace)
        trace.events += [Routed(route), Reached("attend")]
        return self.attend(inputs, prepared, k_pe, metadata, route.value, trace)

    def write_caches(self, inputs: LayerInputs, k_pe: Tensor, metadata: StepMetadata, trace: Trace) -> None:
        write_caches(self.parts, inputs, k_pe, metadata, trace)

    def must_absorb(self, metadata: StepMetadata) -> bool:
        """Whether the MQA query is made for every token: always in a graph, whose replays may take another route."""
        if metadata.mode == "FULL" or metadata.capturing or need(metadata, "num_decode_tokens"):
            return True
        return self.route(metadata, self.new_trace(metadata)).value not in MHA

    def prepare(self, inputs: LayerInputs, positions: Tensor, *, absorb: bool) -> PreparedQuery:
        p = self.parts
        return prepare_query(inputs.q, positions, w_uk=p.w_uk, rotate=p.rotate, absorb=absorb, q_scale=p.q_scale)

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        run_indexer(self.parts, inputs, metadata, trace)

    def route(self, metadata: StepMetadata, trace: Trace) -> Decision[Route]:
        """The branch of the prefill tokens; a layer without an MHA branch runs sparse MQA whatever was decided."""
        decided = dispatch(self.parts.rules, self.parts.deployment, metadata, trace)
        if decided.value in MHA and not self.parts.has_mha:
            return Decision("sparse_mqa", (*decided.reasons, "but this layer has no MHA branch"))
        return decided

    def attend(
        self,
        inputs: LayerInputs,
        prepared: PreparedQuery,
        k_pe: Tensor,
        metadata: StepMetadata,
        route: Route,
        trace: Trace,
    ) -> Tensor:
        total = len(inputs.q)
        cut = need(metadata, "num_decode_tokens") if route in MHA else total
        outs = []
        if cut:
            outs.append(self.attend_mqa(self.mqa_query(prepared).rows(0, cut), metadata, (0, cut), trace))
        if cut < total:
            query = self.mha_query(prepared, need(metadata, "positions")).rows(cut, total)
            outs.append(attend_mha(self.parts, query, inputs.kv_c[cut:], k_pe[cut:], metadata, route, trace))
        return torch.cat(outs)

    def attend_mqa(self, query: Query, metadata: StepMetadata, tokens: Range, trace: Trace) -> Tensor:
        return attend_mqa(self.parts, query, metadata, tokens, trace)

    def mqa_query(self, prepared: PreparedQuery) -> Query:
        if prepared.mqa is None:
            raise ValueError(f"layer {self.parts.name!r}: expected a prepared MQA query, got none: route disagrees")
        return prepared.mqa

    def mha_query(self, prepared: PreparedQuery, positions: Tensor) -> Query:
        return mha_query(prepared, positions, self.parts.rotate)

    def new_trace(self, metadata: StepMetadata | None) -> Trace:
        return self.parts.new_trace() if metadata is None else self.parts.new_trace(metadata.step, metadata.clock)
