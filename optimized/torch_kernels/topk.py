"""Top-k selection by torch.topk and by a stable sort, on integer keys that rank as the scores do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Rank of a column outside [ks, ke): below the key of -inf, so that it is taken only when nothing else is left.
_OUTSIDE = torch.iinfo(torch.int32).min
_NAN = torch.iinfo(torch.int32).max


def topk_select(scores: Tensor, ks: Tensor, ke: Tensor, *, k: int) -> tuple[Tensor]:
    """scores fp32 [s,t], ks, ke int32 [s] -> (indices int32 [s,k],), request-local, by torch.topk."""
    return _select(scores, ks, ke, k, lambda keys, count: keys.topk(count, dim=1).indices)


def sorted_select(scores: Tensor, ks: Tensor, ke: Tensor, *, k: int) -> tuple[Tensor]:
    """The same by a stable descending sort: of equal scores the lowest index comes first."""
    return _select(
        scores, ks, ke, k, lambda keys, count: keys.sort(dim=1, descending=True, stable=True).indices[:, :count]
    )


def _select(scores: Tensor, ks: Tensor, ke: Tensor, k: int, best: Callable[[Tensor, int], Tensor]) -> tuple[Tensor]:
    queries, columns = scores.shape
    column = torch.arange(columns, device=scores.device)
    inside = (column >= ks[:, None]) & (column < ke[:, None])
    count = min(k, columns)
    chosen = torch.full((queries, k), -1, dtype=torch.int32, device=scores.device)
    chosen[:, :count] = (best(_keys(scores, inside), count) - ks[:, None]).int()
    # rows with no more than k columns take them all, in order
    slot = torch.arange(k, dtype=torch.int32, device=scores.device).expand(queries, k)
    length = (ke - ks)[:, None]
    return (torch.where(length > k, chosen, torch.where(slot < length, slot, -1)),)


def _keys(scores: Tensor, inside: Tensor) -> Tensor:
    """int32 keys in the order of the scores: NaN above +inf, both zeros equal, columns outside below -inf."""
    bits = (scores + 0.0).contiguous().view(torch.int32)  # -0 + 0 is +0
    keys = torch.where(bits >= 0, bits, bits ^ _NAN)
    return keys.masked_fill(scores.isnan(), _NAN).masked_fill(~inside, _OUTSIDE)
