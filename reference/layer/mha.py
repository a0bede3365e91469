"""The dense branches: keys and values are projected up, cached context comes in chunks that are merged by their LSE."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..mla import up_project
from ..routing import ContextChunk, Route
from .events import OperatorCall, Range
from .masks import build_mask
from .metadata import StepMetadata, need
from .pages import to_slots
from .parts import Parts
from .query import Query
from .trace import Trace

Partial = tuple[Tensor, Tensor]


def attend_mha(
    parts: Parts, query: Query, kv_c: Tensor, k_pe: Tensor, metadata: StepMetadata, route: Route, trace: Trace
) -> Tensor:
    """Output [s, h, v] of the prefill tokens from their query, latents [s, c] and rotated k_pe [s, r].

    The suffix (new tokens) is causal over the new keys; every context chunk is seen whole. A query may have selected
    keys on one side only, so either partial may be empty.
    """
    first, begin = need(metadata, "num_decodes"), need(metadata, "num_decode_tokens")
    query_lens, context_lens = need(metadata, "query_lens")[first:], need(metadata, "context_lens")[first:]
    tokens = (begin, begin + sum(query_lens))
    selected = parts.buffer.read(tokens, route, trace) if route == "masked_mha" else None
    branch = _Branch(parts, query, selected, tuple(query_lens), begin, trace)
    chunks = need(need(metadata, "prefill"), "chunks")
    out, lse = branch.run((0, len(query_lens)), kv_c, k_pe, context_lens, query_lens, causal=True)
    if chunks:
        context = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
        for chunk in chunks:
            _merge_chunk(branch, chunk, metadata, first, context)
        out, lse = branch.merge(context, (out, lse))
    return out


def _merge_chunk(branch: _Branch, chunk: ContextChunk, metadata: StepMetadata, first: int, context: Partial) -> None:
    """Gather one chunk from the cache, attend, and merge into the rows of its requests."""
    cache = branch.parts.latent
    device = need(metadata, "block_table").device
    spans = zip(chunk.requests, chunk.starts, chunk.lengths, strict=True)
    gathered = [(first + request, torch.arange(start, start + length)) for request, start, length in spans]
    number = torch.cat([torch.full_like(positions, request) for request, positions in gathered]).to(device)
    positions = torch.cat([positions for _, positions in gathered]).to(device)
    slots = to_slots(need(metadata, "block_table"), number, positions, cache.block_size)
    requests = (chunk.requests.start, chunk.requests.stop)
    rows = branch.token_rows(requests)
    cache.note_read(slots, (branch.begin + rows.start, branch.begin + rows.stop), "context", branch.trace)
    latents = cache.rows(slots, branch.query.tensor.dtype)
    rank = branch.parts.deployment.kv_lora_rank
    kv_c, k_pe = latents[:, :rank], latents[:, rank:]
    partial = branch.run(requests, kv_c, k_pe, chunk.starts, chunk.lengths, causal=False)
    context[0][rows], context[1][rows] = branch.merge((context[0][rows], context[1][rows]), partial)


class _Branch:
    """Calls of one MHA operator over the packed prefill requests."""

    def __init__(
        self, parts: Parts, query: Query, selected: Tensor | None, query_lens: tuple[int, ...], begin: int, trace: Trace
    ) -> None:
        self.parts, self.query, self.selected, self.begin, self.trace = parts, query, selected, begin, trace
        self.query_lens = query_lens
        self.starts = (0, *accumulate(query_lens))

    def token_rows(self, requests: Range) -> slice:
        return slice(self.starts[requests[0]], self.starts[requests[1]])

    def run(
        self,
        requests: Range,
        kv_c: Tensor,
        k_pe: Tensor,
        starts: Sequence[int],
        lengths: Sequence[int],
        *,
        causal: bool,
    ) -> Partial:
        """Partial of ``requests`` over the keys at ``starts`` and of ``lengths`` of their sequences."""
        parts, rows = self.parts, self.token_rows(requests)
        query_lens = self.query_lens[slice(*requests)]
        k, v = up_project(kv_c, k_pe, parts.w_uk, parts.w_uv)
        dtype = self.query.tensor.dtype
        arguments = {
            "q": self.query.tensor[rows],
            "k": k.to(dtype),
            "v": v.to(dtype),
            "cu_q": _prefix_sums(query_lens, k.device),
            "cu_k": _prefix_sums(lengths, k.device),
            "scale": parts.scale,
            "causal": causal,
        }
        name = "dense_mha"
        if self.selected is not None:
            workspace = parts.rules.mask_workspace
            multiple = workspace.word_multiple if workspace else 1
            mask = build_mask(self.selected[rows], query_lens, starts, lengths, word_multiple=multiple)
            name, arguments = "masked_mha", {**arguments, "mask": mask}
        tokens = (self.begin + rows.start, self.begin + rows.stop)
        self.trace.events.append(OperatorCall(name, tokens, self.query.form))
        out, lse = parts.operators[name](**arguments)
        return out, lse

    def merge(self, a: Partial, b: Partial) -> Partial:
        out, lse = self.parts.operators["merge_lse"](out_a=a[0], lse_a=a[1], out_b=b[0], lse_b=b[1])
        return out, lse


def _prefix_sums(lengths: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor((0, *accumulate(lengths)), dtype=torch.int32, device=device)
