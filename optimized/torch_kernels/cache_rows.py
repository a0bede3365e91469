"""Rows of a paged latent cache in plain torch: written through typed views of their bytes, gathered by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from .paging import locate
from .quantiser import check_rule, check_scale, codes_of, scales

_TILE = 128


def write_cache(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, cache_format: str, scale_format: str = "pow2",
    least_amax: float = 0.0, least_scale: float = 1e-4, k_scale: float = 1.0,
) -> tuple[()]:  # fmt: skip
    """latent [s,c], rope [s,r], slots int64 [s] -> rows of cache [blocks,block_size,width], in place.

    Slots outside the cache are not written. Raises ValueError for what does not fit, before anything is written.
    """
    c, r = latent.shape[1], rope.shape[1]
    _check(cache, cache_format, c, r)
    check_scale("k_scale", k_scale)
    check_rule(scale_format, least_amax, least_scale, ("fp32", "pow2"))
    size = cache.shape[1]
    kept = torch.nonzero((slots >= 0) & (slots < len(cache) * size)).flatten()
    latent, rope, slot = latent[kept], rope[kept], slots[kept]
    if cache_format == "fp8_ds_mla":
        rows = torch.empty(len(kept), cache.shape[2], dtype=torch.uint8, device=cache.device)
        count = c // min(_TILE, c)
        tiles = latent.float().reshape(len(kept), count, c // count)
        scale = scales(tiles, scale_format, least_amax, least_scale)
        rows[:, :c] = codes_of(tiles / scale[..., None]).reshape(len(kept), c).view(torch.uint8)
        rows[:, c : c + 4 * count] = scale.view(torch.uint8).reshape(len(kept), 4 * count)
        rows[:, c + 4 * count :] = rope.to(torch.bfloat16).contiguous().view(torch.uint8).reshape(len(kept), 2 * r)
    else:
        rows = torch.cat((latent, rope), 1)
        if cache_format == "fp8_e4m3":
            divisor = torch.full((), k_scale, dtype=torch.float32, device=cache.device)
            rows = codes_of(rows.float() / divisor).view(torch.uint8)
    cache.index_put_((slot // size, slot % size), rows.to(cache.dtype))
    return ()


def gather(
    cache: Tensor, block_table: Tensor, starts: Tensor, cu_k: Tensor, *, tokens: int, latent: int, rope: int,
    cache_format: str, k_scale: float = 1.0,
) -> tuple[Tensor]:  # fmt: skip
    """Rows [t,c+r] of the positions from ``starts`` on of every request, in the dtype of the cache or bf16.

    A position without a page in the cache gives zeros. Raises ValueError for what does not fit.
    """
    _check(cache, cache_format, latent, rope)
    check_scale("k_scale", k_scale)
    size = cache.shape[1]
    slot = locate(starts, cu_k, block_table, size, len(cache), tokens)
    held = torch.nonzero(slot >= 0).flatten()
    stored = cache[slot[held] // size, slot[held] % size]
    rows = cache.new_zeros(tokens, latent + rope, dtype=torch.bfloat16 if cache.dtype is torch.uint8 else cache.dtype)
    if cache_format == "model":
        rows[held] = stored
    elif cache_format == "fp8_e4m3":
        rows[held] = (stored.view(torch.float8_e4m3fn).float() * k_scale).to(rows.dtype)
    else:
        tiles = latent // min(_TILE, latent)
        scale = stored[:, latent : latent + 4 * tiles].contiguous().view(torch.float32)
        codes = (
            stored[:, :latent].contiguous().view(torch.float8_e4m3fn).float().view(len(held), tiles, latent // tiles)
        )
        rotated = stored[:, latent + 4 * tiles :].contiguous().view(torch.bfloat16)
        values = (codes * scale[..., None]).reshape(len(held), latent).to(rows.dtype)
        rows[held] = torch.cat((values, rotated), 1)
    return (rows,)


def _check(cache: Tensor, cache_format: str, c: int, r: int) -> None:
    tiles = c // min(_TILE, c) if c else 0
    widths = {"model": c + r, "fp8_e4m3": c + r, "fp8_ds_mla": c + 4 * tiles + 2 * r}
    if cache_format not in widths:
        raise ValueError(f"cache_format: expected one of {', '.join(widths)}, got {cache_format!r}")
    width, bytes_ = widths[cache_format], cache_format != "model"
    if cache.dim() != 3 or cache.shape[2] != width or cache.shape[1] < 1 or (cache.dtype is torch.uint8) != bytes_:
        raise ValueError(
            f"cache: expected {'uint8' if bytes_ else 'floats'} [blocks, block_size, {width}] for {cache_format}, "
            f"got {cache.dtype} {list(cache.shape)}"
        )
