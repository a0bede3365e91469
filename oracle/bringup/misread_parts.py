"""Misreadings of the draft layer's input and of context-parallel ranks.

Sources: vllm#54541 (positions and ranks), sglang#40903 (base 2 merged as natural), vllm#49294 (an empty part counts),
and the two orders of the draft's halves in the DeepSeek-V3 report and its checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...reference import stages as right
from ...reference.stages import Model, Weights


def draft_hidden_first(m: Model, w: Weights, **inputs: Tensor) -> Tensor:
    halves = w.need("draft_proj").chunk(2, -1)
    return right.draft_input(m, replace(w, draft_proj=torch.cat(halves[::-1], -1)), **inputs)


def draft_norms_exchanged(m: Model, w: Weights, **inputs: Tensor) -> Tensor:
    exchanged = replace(w, draft_embed_norm=w.draft_hidden_norm, draft_hidden_norm=w.draft_embed_norm)
    return right.draft_input(m, exchanged, **inputs)


def draft_not_normalised(m: Model, w: Weights, *, previous: Tensor, embedded: Tensor, positions: Tensor) -> Tensor:
    normed = right.rms_norm(embedded, w.need("draft_embed_norm"), m.eps)
    return torch.cat((normed, previous), -1) @ w.need("draft_proj").T


def draft_embedding_late(m: Model, w: Weights, *, embedded: Tensor, **inputs: Tensor) -> Tensor:
    """That of the token itself and not of the next one."""
    return right.draft_input(m, w, embedded=torch.cat((embedded[:1], embedded[:-1])), **inputs)


def rank_of_blocks(m: Model, w: Weights, *, ranks: int, interleave: int, kv_c: Tensor, **inputs: Any) -> Any:
    run = -(-len(kv_c) // ranks)
    return right.rank_attention(m, w, ranks=ranks, interleave=run, kv_c=kv_c, **inputs)


def rank_without_interleave(m: Model, w: Weights, *, interleave: int, **inputs: Any) -> Any:
    return right.rank_attention(m, w, interleave=1, **inputs)


def rank_lse_in_base_2(m: Model, w: Weights, **inputs: Any) -> Any:
    outs, lses = right.rank_attention(m, w, **inputs)
    return outs, lses / math.log(2)


def ranks_in_base_2(m: Model, w: Weights, *, outs: Tensor, lses: Tensor) -> Tensor:
    return right.merge_ranks(m, w, outs=outs, lses=lses * math.log(2))


def ranks_averaged(m: Model, w: Weights, *, outs: Tensor, lses: Tensor) -> Tensor:
    return outs.mean(0)


def ranks_summed(m: Model, w: Weights, *, outs: Tensor, lses: Tensor) -> Tensor:
    return outs.sum(0)


def empty_rank_counts(m: Model, w: Weights, *, outs: Tensor, lses: Tensor) -> Tensor:
    return right.merge_ranks(m, w, outs=outs, lses=torch.where(lses == -torch.inf, 0.0, lses))
