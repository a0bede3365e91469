"""Planted routing and state faults of a layer: a layer that is wrong in one way, or a builder that tells it wrong.

Each names the rules of the layer contract that see it. None changes an operator: every kernel call is right for what it
is given, which is why checks of kernels alone pass them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...reference.layer import Parts, SparseMLALayer, StepMetadata, need
from ..errors import unknown
from . import ranks, strays, variants
from .bytes import FlatlyGathered, InterleavedPages
from .contract import LayerUnderTest
from .fault import Alter, LayerFault
from .prefixes import PREFIX_FAULTS
from .wrong_values import VALUE_FAULTS


def _drop(field: str) -> Callable[[], Alter]:
    missing: dict[str, Any] = {field: None}
    return lambda: lambda metadata: replace(metadata, **missing)


def _drop_prefill(**fields: None) -> Callable[[], Alter]:
    def alter(metadata: StepMetadata) -> StepMetadata:
        if metadata.prefill is None:
            return metadata
        return replace(metadata, prefill=replace(metadata.prefill, **fields))

    return lambda: alter


def _previous_requests() -> Alter:
    """Ids and block table of the step before, where the batch has the same size."""
    last: list[StepMetadata] = []

    def alter(metadata: StepMetadata) -> StepMetadata:
        told = metadata
        if last and len(need(last[0], "ids")) == len(need(metadata, "ids")):
            told = replace(metadata, ids=last[0].ids, owners=last[0].owners, context_lens=last[0].context_lens)
        last[:] = [metadata]
        return told

    return alter


def _swapped_tables() -> Alter:
    return lambda metadata: replace(metadata, block_table=need(metadata, "block_table").flip(0))


def _shifted_slots() -> Alter:
    return lambda metadata: replace(metadata, slots=need(metadata, "slots") + 1)


def _one_slot_for_all() -> Alter:
    return lambda metadata: replace(metadata, slots=torch.full_like(need(metadata, "slots"), 3))


def _chunks(edit: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Callable[[], Alter]:
    def alter(metadata: StepMetadata) -> StepMetadata:
        if metadata.prefill is None:
            return metadata
        chunks = edit(need(metadata.prefill, "chunks"))
        return replace(metadata, prefill=replace(metadata.prefill, chunks=chunks))

    return lambda: alter


def _always_dense() -> Alter:
    def alter(metadata: StepMetadata) -> StepMetadata:
        if metadata.prefill is None:
            return metadata
        return replace(metadata, prefill=replace(metadata.prefill, use_dense_mha=True))

    return alter


_INCIDENT = "vllm-project/vllm#52512"
_STATE = "state carried over between steps or layers"
_BUILDER = "metadata builder and layer disagree"

LAYER_FAULTS: tuple[LayerFault, ...] = (
    LayerFault(name="never-mha", source=_INCIDENT, rules=("topk-computed", "route"), make=variants.NeverMha),
    LayerFault(
        name="skips-on-length",
        source="vllm-project/vllm#49486: a skip that broke decodes",
        rules=("skip",),
        make=variants.SkipsOnLength,
    ),
    LayerFault(
        name="skips-before-caching",
        source="a skip that also skips the indexer's cache",
        rules=("index-cache",),
        make=variants.SkipsBeforeCaching,
    ),
    LayerFault(name="loses-one", source="off by one in top-k", rules=("minus-one",), make=variants.LosesOne),
    LayerFault(name="sees-the-future", source="causality", rules=("selection",), make=variants.SeesTheFuture),
    LayerFault(name="repeats", source="top-k with duplicates", rules=("duplicate",), make=variants.Repeats),
    LayerFault(
        name="writes-prefill-rows-only", source=_STATE, rules=("topk-computed",), make=variants.WritesPrefillRowsOnly
    ),
    LayerFault(
        name="keeps-the-first-selection", source=_STATE, rules=("topk-computed",), make=variants.KeepsTheFirstSelection
    ),
    LayerFault(
        name="rotates-twice", source="fused and MHA branch both rotate", rules=("query",), make=variants.RotatesTwice
    ),
    LayerFault(name="never-rotates", source="neither branch rotates", rules=("query",), make=variants.NeverRotates),
    LayerFault(
        name="absorbed-into-mha", source="wrong prepared query", rules=("query",), make=variants.AbsorbedIntoMha
    ),
    LayerFault(
        name="unabsorbed-into-mqa", source="wrong prepared query", rules=("query",), make=variants.UnabsorbedIntoMqa
    ),
    LayerFault(name="asks-no-guard", source="vllm-project/vllm#50906", rules=("guard",), make=variants.AsksNoGuard),
    LayerFault(
        name="decodes-as-prefills",
        source="decode tokens in the MHA branch",
        rules=("route",),
        make=variants.DecodesAsPrefills,
    ),
    LayerFault(name="routes-first", source="route before index", rules=("order",), make=variants.RoutesFirst),
    LayerFault(
        name="takes-steps-for-dummies",
        source="profile run mistaken",
        rules=("dummy",),
        make=variants.TakesStepsForDummies,
    ),
    LayerFault(
        name="drops-dense-flag", source=_BUILDER, rules=("metadata-missing",), alter=_drop_prefill(use_dense_mha=None)
    ),
    LayerFault(
        name="drops-decode-tokens", source=_BUILDER, rules=("metadata-missing",), alter=_drop("num_decode_tokens")
    ),
    LayerFault(name="drops-block-table", source=_BUILDER, rules=("metadata-missing",), alter=_drop("block_table")),
    LayerFault(name="drops-prefill", source=_BUILDER, rules=("metadata-missing",), alter=_drop("prefill")),
    LayerFault(
        name="previous-requests",
        source="metadata of another batch",
        rules=("metadata-foreign",),
        alter=_previous_requests,
    ),
    LayerFault(
        name="swapped-tables", source="block table in another order", rules=("foreign-row",), alter=_swapped_tables
    ),
    LayerFault(
        name="shifted-slots",
        source="slot mapping off by one",
        rules=("index-space", "foreign-row", "gather"),
        alter=_shifted_slots,
    ),
    LayerFault(
        name="one-slot-for-all",
        source="slot mapping not updated",
        rules=("latent-cache", "foreign-row"),
        alter=_one_slot_for_all,
    ),
    LayerFault(
        name="loses-a-chunk", source="chunked context", rules=("gather",), alter=_chunks(lambda chunks: chunks[:-1])
    ),
    LayerFault(
        name="repeats-a-chunk",
        source="chunked context",
        rules=("gather",),
        alter=_chunks(lambda chunks: (*chunks, *chunks[:1])),
    ),
    LayerFault(
        name="always-dense", source="top-k limit not applied", rules=("metadata-foreign", "route"), alter=_always_dense
    ),
    *VALUE_FAULTS,
    *PREFIX_FAULTS,
)


def _gathers_flat_rows(parts: Parts) -> LayerUnderTest:
    dims = parts.deployment
    blocks = len(parts.latent.owners) // dims.block_size
    latent = FlatlyGathered(blocks, dims.block_size, dims.kv_lora_rank, dims.qk_rope_head_dim)
    return SparseMLALayer(replace(parts, latent=latent))


def _reads_pages_interleaved(parts: Parts) -> LayerUnderTest:
    if parts.index is None:
        return SparseMLALayer(parts)
    blocks, width = len(parts.index.owners) // parts.index.block_size, parts.index.values.shape[1]
    return SparseMLALayer(replace(parts, index=InterleavedPages(blocks, parts.index.block_size, width)))


#: Faults that the random sequences of one rank and numbers in one memory do not reach: incidents play them.
SCENE_FAULTS: tuple[LayerFault, ...] = (
    LayerFault(
        name="converts-the-whole-batch",
        source="vllm-project/vllm#48611",
        rules=("memory",),
        make=strays.ConvertsTheWholeBatch,
    ),
    LayerFault(
        name="global-positions-in-local-tables",
        source="vllm-project/vllm#54541",
        rules=("index-space",),
        make=ranks.GlobalPositionsInLocalTables,
    ),
    LayerFault(
        name="gathers-flat-rows",
        source="vllm-project/vllm#48611, its second part",
        rules=("differential",),
        make=_gathers_flat_rows,
    ),
    LayerFault(
        name="reads-pages-interleaved",
        source="vllm-project/vllm#50576",
        rules=("differential",),
        make=_reads_pages_interleaved,
    ),
)


def layer_fault(name: str) -> LayerFault:
    """The fault of that name. Raises BadInput with the nearest names for an unknown one."""
    known = {fault.name: fault for fault in (*LAYER_FAULTS, *SCENE_FAULTS)}
    if name not in known:
        raise unknown("fault of a layer", name, known)
    return known[name]
