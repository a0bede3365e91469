"""Layers that are wrong in one way each, by overriding one seam of the right one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...reference.layer import (
    LayerInputs,
    PreparedQuery,
    Query,
    Reached,
    SkipDecided,
    SparseMLALayer,
    StepMetadata,
    Trace,
    dispatch,
    mha_query,
    need,
)
from ...reference.layer.indexer import select
from ...reference.layer.writes import write_caches
from ...reference.routing import Decision, Route


class NeverMha(SparseMLALayer):
    """Runs sparse MQA where dense MHA was decided and the indexer skipped."""

    def must_absorb(self, metadata: StepMetadata) -> bool:
        return True

    def route(self, metadata: StepMetadata, trace: Trace) -> Decision[Route]:
        return Decision("sparse_mqa", ("this layer only knows sparse MQA",))


class SkipsOnLength(SparseMLALayer):
    """Skips whenever the prefills are short, whatever else is in the batch or how the step runs."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        if need(metadata, "prefill_max_seq_len") <= self.parts.deployment.index_topk:
            trace.events.append(SkipDecided(Decision(True, ("every prefill is short",))))
        else:
            super().index(inputs, metadata, trace)


class SkipsBeforeCaching(SparseMLALayer):
    """Leaves the indexer's keys unwritten in steps that it will skip."""

    def write_caches(self, inputs: LayerInputs, k_pe: Tensor, metadata: StepMetadata, trace: Trace) -> None:
        if metadata.prefill is None or not metadata.prefill.use_dense_mha:
            super().write_caches(inputs, k_pe, metadata, trace)
        else:
            write_caches(replace(self.parts, kind="shared", index=None), inputs, k_pe, metadata, trace)


class EditsSelection(SparseMLALayer):
    """Scores rightly and stores the wrong thing."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        super().index(inputs, metadata, trace)
        if any(isinstance(event, SkipDecided) and not event.decision.value for event in trace.events):
            self.edit(self.parts.buffer.indices[: len(inputs.q)], need(metadata, "positions"))

    def edit(self, selected: Tensor, positions: Tensor) -> None:
        raise NotImplementedError


class LosesOne(EditsSelection):
    def edit(self, selected: Tensor, positions: Tensor) -> None:
        selected[:, 0] = -1


class SeesTheFuture(EditsSelection):
    def edit(self, selected: Tensor, positions: Tensor) -> None:
        selected[:, 0] = (positions + 1).int()


class Repeats(EditsSelection):
    def edit(self, selected: Tensor, positions: Tensor) -> None:
        selected[positions > 0, 1] = selected[positions > 0, 0]


class WritesPrefillRowsOnly(SparseMLALayer):
    """Stores selections from the first prefill on; rows of decodes keep what an earlier step left."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        trace.events.append(SkipDecided(Decision(False, ("scores",))))
        selected = select(self.parts, inputs, metadata, trace)
        owners = need(metadata, "owners")
        cut = need(metadata, "num_decode_tokens")
        self.parts.buffer.write((cut, len(selected)), selected[cut:], owners[cut:], trace)


class KeepsTheFirstSelection(SparseMLALayer):
    """A full layer that reuses the selection of the full layer before it."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        if self.parts.position == 0:
            super().index(inputs, metadata, trace)
            return
        trace.events.append(SkipDecided(Decision(False, ("scores",))))
        select(self.parts, inputs, metadata, trace)

    def write_caches(self, inputs: LayerInputs, k_pe: Tensor, metadata: StepMetadata, trace: Trace) -> None:
        if self.parts.position == 0 or self.parts.kind == "shared":
            super().write_caches(inputs, k_pe, metadata, trace)
        else:
            quiet = replace(self.parts, deployment=replace(self.parts.deployment, wrapper="generic"))
            write_caches(quiet, inputs, k_pe, metadata, trace)


class RotatesTwice(SparseMLALayer):
    def mha_query(self, prepared: PreparedQuery, positions: Tensor) -> Query:
        query = super().mha_query(prepared, positions)
        nope = self.parts.w_uk.shape[1]
        again = self.parts.rotate(query.tensor[..., nope:], positions).to(query.tensor.dtype)
        tensor = torch.cat((query.tensor[..., :nope], again), -1)
        return Query(tensor, replace(query.form, rotations=query.form.rotations + 1))


class NeverRotates(SparseMLALayer):
    def mha_query(self, prepared: PreparedQuery, positions: Tensor) -> Query:
        query = mha_query(prepared, positions, lambda x, _: x)
        tensor = torch.cat((prepared.nope, prepared.pe), -1)
        return Query(tensor, replace(query.form, rotations=0))


class AbsorbedIntoMha(SparseMLALayer):
    """Hands the absorbed query to MHA; it fits by shape where the latent is as wide as the unrotated dims."""

    def must_absorb(self, metadata: StepMetadata) -> bool:
        return True

    def mha_query(self, prepared: PreparedQuery, positions: Tensor) -> Query:
        query = self.mqa_query(prepared)
        width = prepared.nope.shape[-1] + prepared.pe.shape[-1]
        return Query(query.tensor[..., :width], query.form)


class UnabsorbedIntoMqa(SparseMLALayer):
    """Hands the query of MHA to sparse MQA, padded to the width."""

    def mqa_query(self, prepared: PreparedQuery) -> Query:
        query = super().mqa_query(prepared)
        missing = self.parts.w_uk.shape[2] - prepared.nope.shape[-1]
        nope = torch.nn.functional.pad(prepared.nope, (0, missing))
        tensor = torch.cat((nope, query.tensor[..., nope.shape[-1] :]), -1)
        return Query(tensor, replace(query.form, absorbed=False))


class AsksNoGuard(SparseMLALayer):
    def route(self, metadata: StepMetadata, trace: Trace) -> Decision[Route]:
        quiet = Trace(**{name: getattr(trace, name) for name in trace.__slots__ if name != "events"})
        return dispatch(self.parts.rules, self.parts.deployment, metadata, quiet)


class DecodesAsPrefills(SparseMLALayer):
    """Forgets where the prefills begin and runs every token as MHA."""

    def attend(
        self,
        inputs: LayerInputs,
        prepared: PreparedQuery,
        k_pe: Tensor,
        metadata: StepMetadata,
        route: Route,
        trace: Trace,
    ) -> Tensor:
        if route in ("dense_mha", "masked_mha") and not any(need(metadata, "context_lens")):
            metadata = replace(metadata, num_decodes=0, num_decode_tokens=0)
        return super().attend(inputs, prepared, k_pe, metadata, route, trace)


class RoutesFirst(SparseMLALayer):
    """Chooses and reports its branch before the indexer ran."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        trace.events.append(Reached("route"))
        super().index(inputs, metadata, trace)


class TakesStepsForDummies(SparseMLALayer):
    """Treats a batch of one request as a run without metadata."""

    def forward(self, inputs: LayerInputs, metadata: StepMetadata | None) -> tuple[Tensor, Trace]:
        lone = metadata is not None and len(need(metadata, "ids")) == 1
        return super().forward(inputs, None if lone else metadata)
