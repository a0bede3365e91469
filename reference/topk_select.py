"""Top-k selection inside a window of every row.

    len = ke - ks
    len <= k:  0, 1, …, len - 1, then -1; the scores do not matter
    else:      the k columns of the highest scores, highest first, ties to the lowest column

Results count from ``ks`` (request-local key positions). NaN ranks above +inf, as in ``torch.topk``. Columns outside
[ks, ke) may hold anything. Order and ties in a window of more than k columns are this reference's; an implementation is
free in both.

Source: vLLM 0.33.0 ``csrc/sampler.cu`` (top-k per row) and ``tests/kernels/test_top_k_per_row.py``.

Shapes:
    scores: [s, t]    ks, ke: int [s]    indices: int32 [s, k]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, require_integers
from .chunks import chunk_elements, cut


def topk_select(scores: Tensor, ks: Tensor, ke: Tensor, *, k: int) -> tuple[Tensor]:
    """Selected positions, -1 where a row has fewer than k.

    Raises ValueError for shapes that do not fit and for windows outside the columns; a window with ke <= ks is empty.
    """
    sizes = bind_sizes(("scores", scores, "s t"), ("ks", ks, "s"), ("ke", ke, "s"))
    require_integers(ks=ks, ke=ke)
    if k < 0:
        raise ValueError(f"k: expected 0 or more, got {k}")
    outside = (ke > ks) & ((ks < 0) | (ke > sizes["t"]))
    if outside.any():
        row = int(outside.nonzero()[0])
        raise ValueError(f"ks, ke: expected windows in [0, {sizes['t']}], got [{ks[row]}, {ke[row]}) in row {row}")
    indices = torch.empty(sizes["s"], k, dtype=torch.int32, device=scores.device)
    position = torch.arange(k, device=scores.device)
    for rows in cut(slice(0, sizes["s"]), max(sizes["t"], k), chunk_elements(scores.device)):
        begin, end = ks[rows, None].long(), ke[rows, None].long()
        indices[rows] = torch.where(position < end - begin, position, -1).int()
        long = (end - begin > k).flatten().nonzero().flatten()  # only these need their scores sorted
        if len(long):
            reach = int(end[long].max())
            indices[rows.start + long] = select_rows(scores[rows, :reach][long], begin[long], end[long], k).int()
    return (indices,)


def select_rows(scores: Tensor, ks: Tensor, ke: Tensor, k: int) -> Tensor:
    """Selected positions int64 [x, k] of rows [x, t] with windows [x, 1], all rows at once; no wait for the device."""
    ranked = scores.argsort(dim=-1, descending=True, stable=True)  # columns [x, t], NaN first
    inside = (ranked >= ks) & (ranked < ke)
    slot = inside.cumsum(-1) - 1  # rank among the columns of the window
    slot = torch.where(inside & (slot < k), slot, k)
    best = torch.full((len(scores), k + 1), -1, device=scores.device)  # the last column takes what is not selected
    best = best.scatter_(-1, slot, ranked - ks)[:, :k]
    position = torch.arange(k, device=scores.device)
    identity = torch.where(position < ke - ks, position, -1)
    return torch.where(ke - ks <= k, identity, best)
