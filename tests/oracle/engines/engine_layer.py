"""A small attention layer in an engine's shape: a module, an impl with two methods, an indexer, a shared buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

HEADS, LATENT, ROPE, NOPE, VALUE, TOPK, BLOCK = 2, 16, 4, 8, 8, 8, 4
SCALE = (NOPE + ROPE) ** -0.5


class Indexer(nn.Module):
    """Selects the last keys; skips where the metadata says that everything is dense and no token decodes."""

    def __init__(self, layer: EngineLayer) -> None:
        super().__init__()
        self.owner = [layer]
        self.always_skips = False

    def forward(self, hidden: Tensor, metadata: Any) -> Tensor:
        buffer = self.owner[0].topk_indices_buffer
        dense = metadata.prefill is not None and metadata.prefill.use_dense_mha
        if self.always_skips or (dense and metadata.num_decode_tokens == 0):
            return buffer
        for row, position in enumerate(metadata.positions.tolist()):
            chosen = torch.arange(max(0, position + 1 - TOPK), position + 1)
            buffer[row] = -1
            buffer[row, : len(chosen)] = chosen.int()
        return buffer


class Impl:
    """Attention over a paged cache of latents; plain torch, not ours."""

    def __init__(self, layer: EngineLayer) -> None:
        self.layer = layer
        self.error = 0.0

    def forward_mqa(self, q: Any, cache: Tensor, metadata: Any, layer: Any) -> tuple[Tensor, Tensor]:
        q = torch.cat(tuple(q), -1)
        selected = self.layer.topk_indices_buffer[: len(q)]
        outs, lses = [], []
        for row, request in enumerate(metadata.req_id_per_token[: len(q)].tolist()):
            positions = selected[row][selected[row] >= 0].long()
            slots = metadata.block_table[request][positions // BLOCK].long() * BLOCK + positions % BLOCK
            keys = cache.view(-1, LATENT + ROPE)[slots]
            scores = SCALE * q[row].float() @ keys.float().T
            outs.append(torch.softmax(scores, -1) @ keys[:, :LATENT].float() if len(keys) else 0 * q[row][:, :LATENT])
            lses.append(torch.logsumexp(scores, -1))
        out = torch.stack(outs) * (1 + self.error)
        return out.to(q.dtype), torch.stack(lses)

    def forward_mha(self, q: Tensor, *rest: Any) -> Tensor:
        return q[..., :VALUE]


class EngineLayer(nn.Module):
    """``forward`` as an engine's: cache, index, then MHA for prefills that may, sparse MQA for the rest."""

    def __init__(self, name: str, buffer: Tensor, *, runs_mha: bool = True, indexer: bool = True) -> None:
        super().__init__()
        self.layer_name, self.topk_indices_buffer, self.runs_mha = name, buffer, runs_mha
        self.scale, self.kv_lora_rank = SCALE, LATENT
        self.kv_cache = torch.zeros(64, BLOCK, LATENT + ROPE, dtype=torch.bfloat16)
        self.indexer = Indexer(self) if indexer else None
        self.impl = Impl(self)

    def forward(self, metadata: Any) -> Tensor:
        generator = torch.Generator().manual_seed(len(metadata.positions))
        total = len(metadata.positions)
        latents = torch.randn(total, LATENT + ROPE, generator=generator).bfloat16()
        q = torch.randn(total, HEADS, LATENT + ROPE, generator=generator).bfloat16()
        self.kv_cache.view(-1, LATENT + ROPE)[metadata.slot_mapping] = latents
        if self.indexer is not None:
            self.indexer(latents, metadata)
        dense = self.runs_mha and metadata.prefill is not None and metadata.prefill.use_dense_mha
        cut = metadata.num_decode_tokens if dense else total
        out = latents.new_zeros(total, HEADS, LATENT)
        if cut:
            parts = (q[:cut, :, :LATENT], q[:cut, :, LATENT:])
            out[:cut] = self.impl.forward_mqa(parts, self.kv_cache, metadata, self)[0]
        if cut < total:
            self.impl.forward_mha(q[cut:], latents[cut:])
        return out


def metadata(requests: list[tuple[int, int]], threshold: int = 2) -> Any:
    """Of (new tokens, context) pairs, decodes first; every request has pages of its own."""
    queries = [query for query, _ in requests]
    seqs = [query + context for query, context in requests]
    decodes = sum(query <= threshold for query in queries)
    longest = max(seqs[decodes:], default=0)
    number = torch.repeat_interleave(torch.arange(len(requests)), torch.tensor(queries))
    positions = torch.cat([torch.arange(context, context + query) for query, context in requests])
    table = torch.arange(len(requests) * 16, dtype=torch.int32).view(len(requests), 16)
    return SimpleNamespace(
        num_decodes=decodes,
        num_decode_tokens=sum(queries[:decodes]),
        num_prefills=len(requests) - decodes,
        prefill_max_seq_len=longest,
        query_start_loc=torch.tensor([0, *queries]).cumsum(0),
        seq_lens=torch.tensor(seqs),
        block_table=table,
        req_id_per_token=number.int(),
        block_size=BLOCK,
        positions=positions,
        slot_mapping=table[number, positions // BLOCK].long() * BLOCK + positions % BLOCK,
        prefill=SimpleNamespace(use_dense_mha=longest <= TOPK) if decodes < len(requests) else None,
    )
