"""Masks and selections as FlashInfer's ``plan()`` takes them. Imports nothing of it."""

from __future__ import annotations

import torch
from torch import Tensor


def flattened(mask: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool) -> Tensor:
    """Bool [sum of q_len * k_len]: the requests' masks one after the other, as ``plan`` packs them itself.

    mask: int32 words [b, s_padded, words]. Not ``packed_custom_mask``: with more than one request its offsets, which
    ``plan`` counts in bits, are used as bytes (0.6.18 to 0.7.4).
    """
    starts_q, starts_k = cu_q.tolist(), cu_k.tolist()
    parts = []
    for request in range(len(starts_q) - 1):
        queries = starts_q[request + 1] - starts_q[request]
        keys = torch.arange(starts_k[request + 1] - starts_k[request], device=mask.device)
        seen = (mask[request, :queries][:, keys >> 5] >> (keys & 31).to(torch.int32)) & 1 != 0
        parts.append((seen.tril(len(keys) - queries) if causal else seen).flatten())
    return torch.cat(parts)


def page_table(indices: Tensor, rows: int, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """(slots that count, int32, query after query; how many each query has, int32 [s]).

    indices: int32 [s, k]; an index outside [0, rows) or at or beyond ``lengths`` does not count.
    """
    valid = (indices >= 0) & (indices < rows)
    if lengths is not None:
        valid &= torch.arange(indices.shape[1], device=indices.device) < lengths[:, None]
    return indices[valid].contiguous(), valid.sum(1, dtype=torch.int32)
