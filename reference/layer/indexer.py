"""The lightning indexer of a layer: its keys are always cached, its scoring may be skipped.

The skip test stands between the cache write and the reset of the buffer. The fused layer has reset the buffer before,
so a skip leaves -1 behind; the generic one resets after the test, so a skip leaves what an earlier layer or step wrote.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..routing import skip_binding, skip_indexer
from .cache import IndexCache
from .events import OperatorCall, SkipDecided
from .inputs import LayerInputs
from .metadata import StepMetadata, need
from .pages import to_slots
from .parts import Parts
from .trace import Trace


def run_indexer(parts: Parts, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> None:
    """Score and select for every token of the step, unless the skip holds."""
    binding = skip_binding(parts.rules, parts.deployment, layer=parts.name, kind=parts.kind)
    decision = skip_indexer(
        binding.value,
        mode=metadata.mode,
        dense=None if metadata.prefill is None else need(metadata.prefill, "use_dense_mha"),
        num_decode_tokens=need(metadata, "num_decode_tokens"),
        capturing=metadata.capturing,
    )
    trace.events.append(SkipDecided(decision))
    if decision.value:
        return
    tokens = (0, sum(need(metadata, "query_lens")))
    if parts.deployment.wrapper == "generic":
        parts.buffer.reset(tokens, trace)
    selected = select(parts, inputs, metadata, trace)
    parts.buffer.write(tokens, selected, need(metadata, "owners"), trace)


def select(parts: Parts, inputs: LayerInputs, metadata: StepMetadata, trace: Trace) -> Tensor:
    """Selections int32 [s, k]: gather the keys of all requests, score, select among those a query may see."""
    cache = parts.need_index_cache()
    rows, positions = need(metadata, "request_rows"), need(metadata, "positions")
    begin, slots = _gathered(cache, metadata) if metadata.mode != "FULL" else _padded(cache, metadata)
    tokens = (0, len(rows))
    cache.note_read(slots, tokens, "indexer_scores", trace)
    ks = begin[rows].int()
    seen = torch.minimum(positions + 1, need(metadata, "seq_lens")[rows])
    ke = (begin[rows] + seen).int()
    slots = slots.clamp_min(0)
    trace.events.append(OperatorCall("indexer_scores", tokens))
    (scores,) = parts.operators["indexer_scores"](
        q=inputs.need("index_q"),
        k=cache.values[slots],
        k_scale=cache.scales[slots],
        weights=inputs.need("index_weights"),
        ks=ks,
        ke=ke,
    )
    trace.events.append(OperatorCall("topk_select", tokens))
    selected: tuple[Tensor] = parts.operators["topk_select"](scores=scores, ks=ks, ke=ke, k=parts.deployment.index_topk)
    return selected[0]


def _gathered(cache: IndexCache, metadata: StepMetadata) -> tuple[Tensor, Tensor]:
    """First key of every request [b] and rows of all keys, request after request: as many as there are."""
    query_lens, context_lens = need(metadata, "query_lens"), need(metadata, "context_lens")
    device = need(metadata, "request_rows").device
    lengths = torch.tensor([q + c for q, c in zip(query_lens, context_lens, strict=True)], device=device)
    begin = lengths.cumsum(0) - lengths
    number = torch.repeat_interleave(torch.arange(len(lengths), device=device), lengths)
    local = torch.arange(int(lengths.sum()), device=device) - begin[number]
    return begin, to_slots(need(metadata, "block_table"), number, local, cache.block_size)


def _padded(cache: IndexCache, metadata: StepMetadata) -> tuple[Tensor, Tensor]:
    """The same with room for the longest sequence in every request, as in a full graph, where no length is known.

    A row beyond the length of its request is -1.
    """
    table, lengths = need(metadata, "block_table"), need(metadata, "seq_lens")
    requests, longest = table.shape[0], table.shape[1] * cache.block_size
    at = torch.arange(requests * longest, device=table.device)
    number, local = at.div(longest, rounding_mode="floor"), at.remainder(longest)
    slots = to_slots(table, number, local, cache.block_size)
    begin = torch.arange(requests, device=table.device) * longest
    return begin, torch.where(local < lengths[number], slots, -1)
