"""From request-local positions to cache rows, one program a query."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_rows, check_tensor
from .paging import page_of


@triton.jit
def _convert_indices_kernel(
    indices_ptr, requests_ptr, table_ptr, physical_ptr, counts_ptr, k, b, page_size, most_pages, blocks, page_rows,
    indices_stride, table_stride, COMPACT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    request = tl.load(requests_ptr + query)
    reach = tl.where((request >= 0) & (request < b), most_pages, 0)
    out_ptr = physical_ptr + query * k
    count = 0
    for start in range(0, k, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        position = tl.load(indices_ptr + query * indices_stride + slot, mask=slot < k, other=-1)
        page, valid = page_of(table_ptr, table_stride, request, position, page_size, reach, blocks)
        row = tl.where(valid, page * page_rows + position % page_size, -1).to(tl.int32)
        if COMPACT:
            place = count + tl.cumsum(valid.to(tl.int32), 0) - 1
            tl.store(out_ptr + place, row, mask=valid)
        else:
            tl.store(out_ptr + slot, row, mask=slot < k)
        count += tl.sum(valid.to(tl.int32), 0)
    if COMPACT:
        for start in range(0, k, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            tl.store(out_ptr + slot, tl.full([BLOCK], -1, tl.int32), mask=(slot >= count) & (slot < k))
    tl.store(counts_ptr + query, count)


def convert_indices(
    indices: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_size: int,
    blocks: int,
    page_rows: int,
    compact: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the cache that request-local positions name: page * page_rows + position % block_size.

    Shapes:
        indices: [s, k] int32; an entry that is negative, beyond the table, or in a page outside [0, blocks) becomes -1
        requests: [s] int32 rows of the block table; block_table: [b, most pages] int32; row strides free
    Returns physical [s, k] int32, with ``compact`` the valid entries first and in order, and counts [s] int32.
    Raises ValueError for what does not fit and for a cache whose rows int32 cannot count. Never waits for the device.
    """
    check_tensor("indices", indices, "[s, k]", (None, None), (torch.int32,), indices.device)
    s, k = indices.shape
    check_tensor("requests", requests, "[s]", (s,), (torch.int32,), indices.device)
    check_tensor("block_table", block_table, "[b, most pages]", (None, None), (torch.int32,), indices.device)
    check_rows(block_size, blocks, page_rows)
    physical = torch.empty((s, k), dtype=torch.int32, device=indices.device)
    counts = torch.empty((s,), dtype=torch.int32, device=indices.device)
    if s == 0:
        return physical, counts
    config = launch.topk(max(k, 1))
    _convert_indices_kernel[(s,)](
        indices, requests, block_table, physical, counts, k, block_table.size(0), block_size, block_table.size(1),
        blocks, page_rows, indices.stride(0), block_table.stride(0),
        COMPACT=compact, BLOCK=config.columns, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return physical, counts
