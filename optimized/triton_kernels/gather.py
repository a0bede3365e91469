"""Gathering rows of a paged latent cache into a packed tensor, dequantised."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_cache, check_paging, check_scale, tile_of
from .float8 import as_bf16, as_fp32, values_of
from .padding import padded
from .paging import find_tokens


# Where a single request is made a constant, Triton 3.6 ends in an assertion while it compiles.
@triton.jit(do_not_specialize=["b"])
def _gather_kernel(
    cache_ptr, table_ptr, starts_ptr, cu_k_ptr, rows_ptr, tokens, b, page_size, most_pages, blocks,
    page_stride, row_stride, table_stride, k_scale,
    FORMAT: tl.constexpr, C: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, TILE_BLOCK: tl.constexpr,
    R_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    page, place, held = find_tokens(
        cu_k_ptr, starts_ptr, table_ptr, table_stride, token, tokens, b, page_size, most_pages, blocks
    )
    row_ptr = cache_ptr + page * page_stride + place * row_stride
    out_ptr = rows_ptr + token * (C + R)
    written = (token < tokens)[:, None]

    for start in tl.static_range(0, C, TILE):
        columns = start + tl.arange(0, TILE_BLOCK)
        inside = (columns < start + TILE)[None, :] & (columns < C)[None, :]
        x = tl.load(row_ptr[:, None] + columns[None, :], mask=held[:, None] & inside, other=0)
        if FORMAT == "fp8_e4m3":
            x = values_of(x) * k_scale
        elif FORMAT == "fp8_ds_mla":
            scale = tl.load(as_fp32(row_ptr + C + start // TILE * 4), mask=held, other=0.0)
            x = values_of(x) * scale[:, None]
        tl.store(out_ptr[:, None] + columns[None, :], x.to(rows_ptr.dtype.element_ty), mask=written & inside)

    if R > 0:
        columns = tl.arange(0, R_BLOCK)
        inside = (columns < R)[None, :]
        if FORMAT == "fp8_ds_mla":
            source = as_bf16(row_ptr + C + C // TILE * 4)[:, None] + columns[None, :]
            x = tl.load(source, mask=held[:, None] & inside, other=0.0)
        else:
            x = tl.load(row_ptr[:, None] + C + columns[None, :], mask=held[:, None] & inside, other=0)
            if FORMAT == "fp8_e4m3":
                x = values_of(x) * k_scale
        tl.store(out_ptr[:, None] + C + columns[None, :], x.to(rows_ptr.dtype.element_ty), mask=written & inside)


def gather(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    starts: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    tokens: int,
    latent: int,
    rope: int,
    cache_format: str,
    k_scale: float = 1.0,
) -> tuple[torch.Tensor]:
    """Rows of the positions from ``starts`` on of every request, packed by ``cu_k``.

    Shapes:
        cache: [blocks, block_size, width] as ``write_cache`` fills it; page and row strides free
        block_table: [b, most pages] int32; a page outside the cache, or beyond the table, gives a row of zeros
        starts: [b] int32, cu_k: [b + 1] int32 prefix sums up to ``tokens``
    Returns rows [tokens, latent + rope], in the dtype of a ``model`` cache, else bf16 of code * scale in fp32.
    Raises ValueError for what does not fit, a scale that is none and bytes not aligned to 4. Never waits for the
    device.
    """
    check_cache(cache, cache_format, latent, rope, cache.device)
    b, most_pages = check_paging(block_table, starts, cu_k, tokens, cache.device)
    check_scale("k_scale", k_scale)
    dtype = torch.bfloat16 if cache.dtype == torch.uint8 else cache.dtype
    rows = torch.empty((tokens, latent + rope), dtype=dtype, device=cache.device)
    if tokens == 0 or b == 0:
        return (rows.zero_(),)
    tile = tile_of(latent)
    config = launch.rows(padded(tile), launch.room(cache.device))
    _gather_kernel[(triton.cdiv(tokens, config.rows),)](
        cache, block_table, starts, cu_k, rows, tokens, b, cache.size(1), most_pages, cache.size(0),
        cache.stride(0), cache.stride(1), block_table.stride(0), k_scale,
        FORMAT=cache_format, C=latent, R=rope, TILE=tile, TILE_BLOCK=padded(tile), R_BLOCK=padded(rope),
        BLOCK=config.rows, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return (rows,)
