"""Where tokens lie in a paged cache.

The token at position p of a request lies in page ``block_table[request, p // block_size]``, place ``p % block_size``.
A page number outside the cache, or a position that the table does not reach, is no place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import request_slices, require_integers


def positions_of(starts: Tensor, cu: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Request and position int64 [t] of packed tokens; request b has the positions from ``starts[b]`` on.

    Raises ValueError for prefix sums that do not fit or negative starts.
    """
    require_integers(starts=starts)
    spans = request_slices("cu", cu, tokens)
    if starts.shape != (len(spans),) or bool((starts < 0).any()):
        raise ValueError(f"starts: expected [{len(spans)}], none negative, got {starts.tolist()}")
    request = torch.repeat_interleave(
        torch.arange(len(spans), device=starts.device), cu.long()[1:] - cu.long()[:-1], output_size=tokens
    )
    return request, torch.arange(tokens, device=starts.device) - cu.long()[request] + starts.long()[request]


def place_of(block_table: Tensor, request: Tensor, position: Tensor, size: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Page and place int64 of positions, both -1 where there is none; ``request`` broadcasts against ``position``."""
    require_integers(block_table=block_table)
    if block_table.dim() != 2:
        raise ValueError(f"block_table: expected [b, most pages], got {list(block_table.shape)}")
    column = position.div(size, rounding_mode="floor")
    reached = (position >= 0) & (column < block_table.shape[1])
    request = request.expand_as(column)
    if not block_table.numel():
        nowhere = torch.full_like(column, -1)
        return nowhere, nowhere
    page = block_table[torch.where(reached, request, 0), torch.where(reached, column, 0)].long()
    held = reached & (page >= 0) & (page < blocks)
    return torch.where(held, page, -1), torch.where(held, position - column * size, -1)
