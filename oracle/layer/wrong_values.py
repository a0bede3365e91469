"""Layers that take every step as they should and give other numbers: only the outputs tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import (
    LayerInputs,
    Parts,
    PreparedQuery,
    Query,
    Range,
    SkipDecided,
    SparseMLALayer,
    StepMetadata,
    Trace,
    need,
)
from ...reference.routing import Route
from .contract import LayerUnderTest
from .fault import LayerFault


class _Swaps(SparseMLALayer):
    """Changes a part for the length of a call."""

    @contextmanager
    def having(self, **changes: Any) -> Iterator[None]:
        kept = self.parts
        self.parts = replace(kept, **changes)
        try:
            yield
        finally:
            self.parts = kept


class ProjectsOtherHeads(_Swaps):
    """Sparse MQA's latent output is projected by the values of other heads; the branch of MHA is right."""

    def attend_mqa(self, query: Query, metadata: StepMetadata, tokens: Range, trace: Trace) -> Tensor:
        with self.having(w_uv=self.parts.w_uv.flip(0)):
            return super().attend_mqa(query, metadata, tokens, trace)


class _EditsAttention(_Swaps):
    """``edited`` attends for a step with prefills as MHA."""

    def attend(
        self,
        inputs: LayerInputs,
        prepared: PreparedQuery,
        k_pe: Tensor,
        metadata: StepMetadata,
        route: Route,
        trace: Trace,
    ) -> Tensor:
        def right(given: LayerInputs, rotated: Tensor) -> Tensor:
            return super(_EditsAttention, self).attend(given, prepared, rotated, metadata, route, trace)

        if route not in ("dense_mha", "masked_mha"):
            return right(inputs, k_pe)
        return self.edited(right, inputs, k_pe, need(metadata, "num_decode_tokens"))

    def edited(self, right: Callable[..., Tensor], inputs: LayerInputs, k_pe: Tensor, cut: int) -> Tensor:
        raise NotImplementedError


class PutsDecodesLast(_EditsAttention):
    """Joins the outputs of the two branches in the wrong order."""

    def edited(self, right: Callable[..., Tensor], inputs: LayerInputs, k_pe: Tensor, cut: int) -> Tensor:
        return right(inputs, k_pe).roll(-cut, 0)


class LeavesTheSuffixUnrotated(_EditsAttention):
    """Gives MHA the new keys without their rotation; the cache holds them rotated."""

    def edited(self, right: Callable[..., Tensor], inputs: LayerInputs, k_pe: Tensor, cut: int) -> Tensor:
        return right(inputs, inputs.k_pe)


class MergesAnEarlierPartial(_EditsAttention):
    """Merges the context's partial of an earlier step where its shape fits."""

    earlier: tuple[Tensor, Tensor] | None = None

    def edited(self, right: Callable[..., Tensor], inputs: LayerInputs, k_pe: Tensor, cut: int) -> Tensor:
        merge = self.parts.operators["merge_lse"]

        def stale(*, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Any, ...]:
            last, self.earlier = self.earlier, (out_a.clone(), lse_a.clone())
            if last is not None and last[0].shape == out_a.shape and bool(lse_a.isfinite().all()):
                out_a, lse_a = last
            return merge(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)

        with self.having(operators={**self.parts.operators, "merge_lse": stale}):
            return right(inputs, k_pe)


class SelectsTheLatest(SparseMLALayer):
    """Stores the last k positions instead of the best: distinct, of its own past, and as many as there must be."""

    def index(self, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
        super().index(inputs, metadata, trace)
        if any(isinstance(event, SkipDecided) and not event.decision.value for event in trace.events):
            positions, topk = need(metadata, "positions"), self.parts.deployment.index_topk
            latest = positions[:, None] - torch.arange(topk, device=positions.device)
            self.parts.buffer.indices[: len(positions)] = latest.clamp_min(-1).int()


class CachesTheLastTokenLate(SparseMLALayer):
    """The row of a step's last token holds what lay there until attention has read it."""

    def forward(self, inputs: LayerInputs, metadata: StepMetadata | None) -> tuple[Tensor, Trace]:
        if metadata is None:
            return super().forward(inputs, None)
        values, last = self.parts.latent.values, need(metadata, "slots")[-1]
        self.earlier = values[last].clone()
        done = super().forward(inputs, metadata)
        values[last] = self.due
        return done

    def write_caches(self, inputs: LayerInputs, k_pe: Tensor, metadata: StepMetadata, trace: Trace) -> None:
        super().write_caches(inputs, k_pe, metadata, trace)
        values, last = self.parts.latent.values, need(metadata, "slots")[-1]
        self.due = values[last].clone()
        values[last] = self.earlier


def reads_a_row_for_none(parts: Parts) -> LayerUnderTest:
    """A sparse branch that takes -1, no selection, for row 0 of the cache."""
    operator = parts.operators["sparse_mqa"]

    def reads(*, indices: Tensor, **inputs: Any) -> tuple[Any, ...]:
        return operator(indices=indices.clamp_min(0), **inputs)

    return SparseMLALayer(replace(parts, operators={**parts.operators, "sparse_mqa": reads}))


def one_index_cache() -> Callable[[Parts], LayerUnderTest]:
    """Layers of which all keep the indexer's keys in one cache: each selects by the keys of the one that wrote last."""
    known: list[Parts] = []

    def make(parts: Parts) -> LayerUnderTest:
        if parts.position == 0:
            known[:] = [parts]
        elif parts.kind != "shared":
            parts = replace(parts, index=known[0].index)
        return SparseMLALayer(parts)

    return make


def _differs(name: str, source: str, make: Callable[[Parts], LayerUnderTest]) -> LayerFault:
    return LayerFault(name=name, source=source, rules=("differential",), make=make)


VALUE_FAULTS: tuple[LayerFault, ...] = (
    _differs("projects-other-heads", "absorbed weights of one branch in another order", ProjectsOtherHeads),
    _differs("puts-decodes-last", "outputs of decodes and prefills joined in the wrong order", PutsDecodesLast),
    _differs("leaves-the-suffix-unrotated", "fused and MHA branch: neither rotates k_pe", LeavesTheSuffixUnrotated),
    _differs(
        "merges-an-earlier-partial", "chunked context: a buffer of partials is not renewed", MergesAnEarlierPartial
    ),
    _differs("selects-the-latest", "a window in place of the top-k", SelectsTheLatest),
    _differs("caches-the-last-token-late", "a cache is written after it is read", CachesTheLastTokenLate),
    _differs("reads-a-row-for-none", "vllm-project/vllm#52512: -1 is read as a row", reads_a_row_for_none),
    _differs("one-index-cache", "layers given one cache of the indexer", one_index_cache()),
)
