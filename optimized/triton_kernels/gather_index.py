"""Gathering codes and scales of the indexer's keys out of its pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_pages, check_paging
from .float8 import as_int32
from .padding import padded
from .paging import find_tokens


# Where a single request is made a constant, Triton 3.6 ends in an assertion while it compiles.
@triton.jit(do_not_specialize=["b"])
def _gather_index_kernel(
    pages_ptr, table_ptr, starts_ptr, cu_k_ptr, k_ptr, scale_ptr, tokens, b, page_size, most_pages, blocks,
    page_stride, table_stride, E: tl.constexpr, E_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    page, place, held = find_tokens(
        cu_k_ptr, starts_ptr, table_ptr, table_stride, token, tokens, b, page_size, most_pages, blocks
    )
    page_ptr = pages_ptr + page * page_stride
    columns = tl.arange(0, E_BLOCK)
    inside = (columns < E)[None, :]
    codes = tl.load((page_ptr + place * E)[:, None] + columns[None, :], mask=held[:, None] & inside, other=0)
    tl.store(k_ptr + token[:, None] * E + columns[None, :], codes, mask=(token < tokens)[:, None] & inside)
    scale = tl.load(as_int32(page_ptr + page_size * E + place * 4), mask=held, other=0)
    tl.store(scale_ptr + token, scale, mask=token < tokens)


def gather_index(
    pages: torch.Tensor,
    block_table: torch.Tensor,
    starts: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    tokens: int,
    e: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of the positions from ``starts`` on of every request, packed by ``cu_k``, as they are stored.

    Shapes:
        pages: [blocks, block_size * (e + 4)] uint8, page stride free: codes of all tokens, then their fp32 scales
        block_table: [b, most pages] int32; a page outside the cache, or beyond the table, gives zeros
        starts: [b] int32, cu_k: [b + 1] int32 prefix sums up to ``tokens``
    Returns k float8_e4m3fn [tokens, e] and k_scale fp32 [tokens].
    Raises ValueError for what does not fit and for scales not aligned to 4. Never waits for the device.
    """
    size = check_pages(pages, e, pages.device)
    b, most_pages = check_paging(block_table, starts, cu_k, tokens, pages.device)
    k = torch.empty((tokens, e), dtype=torch.float8_e4m3fn, device=pages.device)
    scale = torch.empty((tokens,), dtype=torch.float32, device=pages.device)
    if tokens == 0 or b == 0:
        k.view(torch.uint8).zero_()
        return k, scale.zero_()
    config = launch.rows(padded(e), launch.room(pages.device))
    _gather_index_kernel[(triton.cdiv(tokens, config.rows),)](
        pages, block_table, starts, cu_k, k.view(torch.uint8), scale.view(torch.int32), tokens, b, size, most_pages,
        pages.size(0), pages.stride(0), block_table.stride(0),
        E=e, E_BLOCK=padded(e), BLOCK=config.rows, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return k, scale
