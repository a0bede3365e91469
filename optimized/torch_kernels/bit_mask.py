"""Bit masks of selections in plain torch: one bit plane at a time, so that no sum can carry into a neighbour."""

from __future__ import annotations

import torch
from torch import Tensor


def build_mask(
    indices: Tensor, cu_q: Tensor, starts: Tensor, lengths: Tensor, *, rows: int, words: int,
    key_starts: Tensor | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """indices int32 [s,k], cu_q [b+1], starts, lengths [b] -> (mask int32 [b,rows,words],).

    Bit j & 31 of word j >> 5: the query selected position starts[b] + j, j < lengths[b]. ``key_starts`` go into the
    last word of row 0. Queries and bits that the mask has no room for set none.
    """
    requests, room = len(starts), (words - (key_starts is not None)) * 32
    query = torch.arange(len(indices), device=indices.device)
    request = torch.searchsorted(cu_q[1:].long(), query, right=True)
    row = query - cu_q.long()[request]
    bit = indices.long() - starts.long()[request][:, None]
    limit = lengths.long()[request].clamp(max=room)[:, None]
    set_ = (indices >= 0) & (bit >= 0) & (bit < limit) & (row < rows)[:, None]
    word = (request * rows + row)[:, None] * words + torch.div(bit, 32, rounding_mode="floor")
    mask = torch.zeros(requests * rows * words, dtype=torch.int32, device=indices.device)
    for shift in range(32):
        plane = word[set_ & (bit % 32 == shift)]
        mask[plane] |= (1 << shift) - (1 << 32 if shift == 31 else 0)
    mask = mask.view(requests, rows, words)
    if key_starts is not None:
        mask[:, 0, words - 1] = key_starts
    return (mask,)
