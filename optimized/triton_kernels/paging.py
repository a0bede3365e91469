"""Finding packed tokens in a paged cache, without the host knowing any length."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def request_of(cu_ptr, token, b):
    """Number of the request that owns each packed token, int32: the last one that begins at or before it."""
    low = (token * 0).to(tl.int32)
    high = low + (b - 1)
    width = tl.zeros([], tl.int32) + b
    while width > 1:
        middle = (low + high + 1) // 2
        begun = tl.load(cu_ptr + middle) <= token
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, tl.maximum(middle - 1, low))
        width = (width + 1) // 2
    return low


@triton.jit
def page_of(table_ptr, table_stride, request, position, page_size, most_pages, blocks):
    """Page of a position, int64, and whether there is one: the table reaches it with a page inside the cache."""
    column = position // page_size
    reached = (position >= 0) & (column < most_pages)
    page = tl.load(table_ptr + request.to(tl.int64) * table_stride + column, mask=reached, other=-1).to(tl.int64)
    return page, reached & (page >= 0) & (page < blocks)


@triton.jit
def find_tokens(cu_ptr, starts_ptr, table_ptr, table_stride, token, tokens, b, page_size, most_pages, blocks):
    """Page and place, int64, of packed tokens, and whether they have any."""
    live = (token < tokens) & (token < tl.load(cu_ptr + b))
    request = request_of(cu_ptr, token, b)
    position = token - tl.load(cu_ptr + request) + tl.load(starts_ptr + request)
    position = tl.where(live, position, -1)
    page, held = page_of(table_ptr, table_stride, request, position, page_size, most_pages, blocks)
    return page, position % page_size, held
