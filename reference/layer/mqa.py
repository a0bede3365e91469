"""The sparse branch: absorbed queries over the cache rows that the indexer selected."""

from __future__ import annotations

import torch
from torch import Tensor

from ..mla import project_output
from .events import OperatorCall, Range
from .metadata import StepMetadata, need
from .pages import to_slots
from .parts import Parts
from .query import Query
from .trace import Trace


def attend_mqa(parts: Parts, query: Query, metadata: StepMetadata, tokens: Range, trace: Trace) -> Tensor:
    """Output [s, h, v] of the query tokens ``tokens``; ``query`` holds their rows only.

    Under DCP every rank attends to the keys that it keeps and the partials are merged by their LSE; under PCP the ranks
    take the queries in turn. Ranks are simulated one after the other.
    """
    selected = parts.buffer.read(tokens, "sparse_mqa", trace)
    slots = to_slots(
        need(metadata, "block_table"),
        need(metadata, "request_rows")[slice(*tokens)][:, None],
        selected,
        parts.latent.block_size,
    )
    parts.latent.note_read(slots, tokens, "sparse_mqa", trace)
    trace.events.append(OperatorCall("sparse_mqa", tokens, query.form))
    shares = (tensor.tensor_split(parts.deployment.pcp) for tensor in (query.tensor, selected, slots))
    outs = [_ranked(parts, q, chosen, rows, query.form.packed) for q, chosen, rows in zip(*shares, strict=True)]
    return project_output(torch.cat(outs), parts.w_uv)


def _ranked(parts: Parts, q: Tensor, selected: Tensor, slots: Tensor, packed: bool) -> Tensor:
    """Latent output [s, h, c] merged over the context-parallel ranks that keep the keys."""
    dcp = parts.deployment.dcp
    if dcp == 1:
        return _call(parts, q, slots, packed)[0]
    keeper = selected.div(parts.deployment.cp_interleave, rounding_mode="floor") % dcp
    out, lse = _call(parts, q, torch.where(keeper == 0, slots, -1), packed)
    for rank in range(1, dcp):
        partial = _call(parts, q, torch.where(keeper == rank, slots, -1), packed)
        out, lse = parts.operators["merge_lse"](out_a=out, lse_a=lse, out_b=partial[0], lse_b=partial[1])
    return out


def _call(parts: Parts, q: Tensor, slots: Tensor, packed: bool) -> tuple[Tensor, Tensor]:
    """One kernel call; quantised rows are read as they are by packed queries and where they are bytes."""
    cache = parts.latent
    stored: dict[str, object] = {}
    if packed:
        stored = {"cache_format": "fp8_e4m3", "q_scale": parts.q_scale, "k_scale": cache.k_scale}
    elif cache.format != "model":
        stored = {"cache_format": cache.format}
    kv = cache.values if stored else cache.rows(None, q.dtype)
    out, lse = parts.operators["sparse_mqa"](
        q=q, kv=kv, indices=slots.int(), scale=parts.scale, value_dim=parts.deployment.kv_lora_rank, **stored
    )
    return out, lse
