"""Writing new tokens into a paged latent cache: one program a few tokens, one store a byte or value."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import ATTENTION_DTYPES, FORMATS, check_cache, check_scale, check_scale_rule, check_tensor, tile_of
from .float8 import as_bf16, as_fp32, block_scales, codes_of
from .padding import padded


@triton.jit
def _write_cache_kernel(
    latent_ptr, rope_ptr, slots_ptr, cache_ptr, s, page_size, slot_count, latent_stride, rope_stride,
    page_stride, row_stride, k_scale, least_amax, least_scale,
    FORMAT: tl.constexpr, C: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr, TILE_BLOCK: tl.constexpr,
    R_BLOCK: tl.constexpr, POW2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + token, mask=token < s, other=-1).to(tl.int64)
    live = (slot >= 0) & (slot < slot_count)
    row_ptr = cache_ptr + slot // page_size * page_stride + slot % page_size * row_stride

    for start in tl.static_range(0, C, TILE):
        columns = start + tl.arange(0, TILE_BLOCK)
        inside = live[:, None] & (columns < start + TILE)[None, :] & (columns < C)[None, :]
        x = tl.load(latent_ptr + (token * latent_stride)[:, None] + columns[None, :], mask=inside, other=0.0)
        target = row_ptr[:, None] + columns[None, :]
        if FORMAT == "model":
            tl.store(target, x.to(cache_ptr.dtype.element_ty), mask=inside)
        elif FORMAT == "fp8_e4m3":
            tl.store(target, codes_of(x.to(tl.float32), k_scale), mask=inside)
        else:
            scale = block_scales(x.to(tl.float32), least_amax, least_scale, POW2)
            tl.store(target, codes_of(x.to(tl.float32), scale[:, None]), mask=inside)
            tl.store(as_fp32(row_ptr + C + start // TILE * 4), scale, mask=live)

    if R > 0:
        columns = tl.arange(0, R_BLOCK)
        inside = live[:, None] & (columns < R)[None, :]
        x = tl.load(rope_ptr + (token * rope_stride)[:, None] + columns[None, :], mask=inside, other=0.0)
        if FORMAT == "model":
            tl.store(row_ptr[:, None] + C + columns[None, :], x.to(cache_ptr.dtype.element_ty), mask=inside)
        elif FORMAT == "fp8_e4m3":
            tl.store(row_ptr[:, None] + C + columns[None, :], codes_of(x.to(tl.float32), k_scale), mask=inside)
        else:
            target = as_bf16(row_ptr + C + C // TILE * 4)
            tl.store(target[:, None] + columns[None, :], x.to(tl.bfloat16), mask=inside)


def write_cache(
    latent: torch.Tensor,
    rope: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    *,
    cache_format: str,
    scale_format: str = "pow2",
    least_amax: float = 0.0,
    least_scale: float = 1e-4,
    k_scale: float = 1.0,
) -> tuple[()]:
    """Stores the rows of new tokens at their slots; returns nothing.

    Shapes:
        latent: [s, c], rope: [s, r], one of bf16, fp16, fp32; row strides free
        slots: [s] int64, distinct; one outside [0, blocks * block_size) is not written
        cache: [blocks, block_size, width], page and row strides free: ``model`` holds c + r values in its own dtype,
            ``fp8_e4m3`` as many codes of value / k_scale, ``fp8_ds_mla`` c codes, an fp32 scale a tile of 128 (by
            ``scale_format`` fp32 or pow2, ``least_amax`` and ``least_scale``), r values in bf16
    Raises ValueError, before anything is written, for what does not fit, a scale that is none, and bytes that are not
    aligned to 4.
    """
    check_tensor("latent", latent, "[s, c]", (None, None), ATTENTION_DTYPES, latent.device)
    s, c = latent.shape
    check_tensor("rope", rope, "[s, r]", (s, None), (latent.dtype,), latent.device)
    check_tensor("slots", slots, "[s]", (s,), (torch.int64,), latent.device)
    check_cache(cache, cache_format, c, rope.size(1), latent.device)
    check_scale("k_scale", k_scale)
    check_scale_rule(scale_format, least_amax, least_scale, FORMATS)
    blocks, size, _ = cache.shape
    if s == 0 or blocks == 0:
        return ()
    tile = tile_of(c)
    config = launch.rows(padded(tile), launch.room(latent.device))
    _write_cache_kernel[(triton.cdiv(s, config.rows),)](
        latent, rope, slots, cache, s, size, blocks * size, latent.stride(0), rope.stride(0),
        cache.stride(0), cache.stride(1), k_scale, least_amax, least_scale,
        FORMAT=cache_format, C=c, R=rope.size(1), TILE=tile, TILE_BLOCK=padded(tile), R_BLOCK=padded(rope.size(1)),
        POW2=scale_format == "pow2", BLOCK=config.rows, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return ()
