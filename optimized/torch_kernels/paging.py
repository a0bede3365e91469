"""Block tables in plain torch: where packed tokens lie, and positions as rows of the cache."""

from __future__ import annotations

import torch
from torch import Tensor


def locate(starts: Tensor, cu_k: Tensor, block_table: Tensor, size: int, blocks: int, tokens: int) -> Tensor:
    """Slots int64 [t], page * size + place, of packed tokens; -1 for a token without a place."""
    token = torch.arange(tokens, device=cu_k.device, dtype=torch.int64)
    request = torch.searchsorted(cu_k[1:].long(), token, right=True)
    position = token - cu_k.long()[request] + starts.long()[request]
    return slots_of(position, request, block_table, size, size, blocks)


def slots_of(position: Tensor, request: Tensor, table: Tensor, size: int, page_rows: int, blocks: int) -> Tensor:
    """Rows int64 of positions, -1 for those that the table does not reach with a page of the cache."""
    column = torch.div(position, size, rounding_mode="floor")
    ok = (position >= 0) & (column < table.shape[1]) & (request >= 0) & (request < table.shape[0])
    if table.numel() == 0:
        return torch.full_like(position, -1)
    flat = torch.where(ok, request * table.shape[1] + column, 0)
    page = table.reshape(-1)[flat].long()
    ok = ok & (page >= 0) & (page < blocks)
    return torch.where(ok, page * page_rows + position % size, -1)


def convert_indices(
    indices: Tensor, requests: Tensor, block_table: Tensor, *, block_size: int, blocks: int, page_rows: int,
    compact: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """indices int32 [s,k], requests int32 [s], block_table int32 [b,m] -> physical int32 [s,k], counts int32 [s].

    Invalid entries become -1; with ``compact`` the valid ones come first, in their order. Raises ValueError for sizes
    that cannot be and for a cache whose rows int32 cannot count.
    """
    if block_size < 1 or blocks < 0 or page_rows < block_size or blocks * page_rows > 2**31:
        raise ValueError(
            f"block_size, blocks, page_rows: expected pages whose rows int32 counts, got {block_size}, {blocks}, "
            f"{page_rows}"
        )
    rows = slots_of(indices.long(), requests.long()[:, None], block_table, block_size, page_rows, blocks)
    valid = rows >= 0
    if compact:
        packed = torch.full_like(rows, -1)
        place = valid.cumsum(1) - 1
        query = torch.arange(len(rows), device=rows.device)[:, None].expand_as(rows)
        packed[query[valid], place[valid]] = rows[valid]
        rows = packed
    return rows.to(torch.int32), valid.sum(1).to(torch.int32)
