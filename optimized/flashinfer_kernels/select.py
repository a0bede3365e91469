"""Top-k selection by FlashInfer's radix kernels."""

from __future__ import annotations

import flashinfer
import torch
from torch import Tensor


def ragged_transform(scores: Tensor, ks: Tensor, ke: Tensor, *, k: int) -> tuple[Tensor]:
    """scores fp32 [s,t], ks, ke int32 [s] -> (indices int32 [s,k],), request-local, by ``top_k_ragged_transform``.

    It takes the window itself; offsets of 0 keep its results request-local.
    """
    lengths = (ke - ks).clamp_min(0)
    return (flashinfer.top_k_ragged_transform(scores, torch.zeros_like(ks), lengths, k, row_starts=ks),)


def top_k(scores: Tensor, ks: Tensor, ke: Tensor, *, k: int) -> tuple[Tensor]:
    """The same by ``top_k`` over whole rows: columns outside the window are -inf, short windows are written here.

    It has no windows, so a score of -inf inside one is handed over as the lowest finite number: it would tie with what
    is outside.
    """
    columns = scores.shape[1]
    column = torch.arange(columns, device=scores.device)
    inside = (column >= ks[:, None]) & (column < ke[:, None])
    count = min(k, columns)
    chosen = torch.full((scores.shape[0], k), -1, dtype=torch.int32, device=scores.device)
    if count:
        lowest = torch.finfo(scores.dtype).min
        _, indices = flashinfer.top_k(scores.clamp_min(lowest).masked_fill(~inside, float("-inf")), count)
        chosen[:, :count] = (indices - ks[:, None]).int()
    slot = torch.arange(k, dtype=torch.int32, device=scores.device).expand(scores.shape[0], k)
    length = (ke - ks)[:, None]
    return (torch.where(length > k, chosen, torch.where(slot < length, slot, -1)),)
