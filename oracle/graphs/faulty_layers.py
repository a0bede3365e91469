"""Layers that are wrong under graphs, by overriding one seam of the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ...reference.layer import (
    LayerInputs,
    PreparedQuery,
    Query,
    SkipDecided,
    SparseMLALayer,
    StepMetadata,
    Trace,
    need,
)
from ...reference.routing import Decision, Route


class FrozenRoute(SparseMLALayer):
    """Takes ``frozen`` between the pieces of a graph."""

    frozen: Decision[Route] | None = None

    def route(self, metadata: StepMetadata, trace: Trace) -> Decision[Route]:
        decided = super().route(metadata, trace)
        between = metadata.mode == "PIECEWISE" and not metadata.capturing and need(metadata, "num_prefills")
        return self.frozen if between and self.frozen is not None else decided


class PreparesByLength(SparseMLALayer):
    """Prepares the query by the lengths alone and dispatches by the whole rule."""

    def must_absorb(self, metadata: StepMetadata) -> bool:
        if metadata.capturing or need(metadata, "num_decode_tokens"):
            return True
        return bool(need(metadata, "prefill_max_seq_len") > self.parts.deployment.index_topk)


class PreparesAsEager(SparseMLALayer):
    """Prepares in a capture what the captured batch needs, as in an eager step."""

    def must_absorb(self, metadata: StepMetadata) -> bool:
        return super().must_absorb(replace(metadata, capturing=False))


class RotatesAgain(SparseMLALayer):
    """Takes every prepared MQA query for a pack that holds the only rotated dims."""

    def mha_query(self, prepared: PreparedQuery, positions: Tensor) -> Query:
        query = super().mha_query(prepared, positions)
        if prepared.mqa is None or prepared.rotated is None:
            return query
        nope = self.parts.w_uk.shape[1]
        again = self.parts.rotate(query.tensor[..., nope:], positions).to(query.tensor.dtype)
        tensor = torch.cat((query.tensor[..., :nope], again), -1)
        return Query(tensor, replace(query.form, rotations=query.form.rotations + 1))


class SkipsInFull(SparseMLALayer):
    """Leaves scoring out of a full graph."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        if metadata.mode == "FULL" and metadata.capturing:
            trace.events.append(SkipDecided(Decision(True, ("left out of the capture",))))
        else:
            super().index(inputs, metadata, trace)


def calling(call: Callable[[StepMetadata, LayerInputs], object]) -> type[SparseMLALayer]:
    """A layer that makes a call in its captured part."""

    class Calls(SparseMLALayer):
        def before(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> tuple[Tensor, PreparedQuery]:
            call(metadata, inputs)
            return super().before(inputs, metadata, trace)

    return Calls
