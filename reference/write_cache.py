"""Writing new tokens into a paged latent cache, in place.

    cache[slots[s] // block_size, slots[s] % block_size] = row of latent[s] and rope[s]

A slot is ignored if it is negative (padding) or beyond the last page. All else in the cache keeps its bytes. Slots are
distinct; of two tokens for one slot either may win.

Source: vLLM 0.33.0 ``concat_and_cache_mla``; the rows are those of ``layouts.formats``.

Shapes:
    latent: [s, c]    rope: [s, r]    slots: int64 [s]
    cache: [blocks, block_size, c+r] in the model's dtype, or uint8 [blocks, block_size, width]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, require_integers
from .layouts import ScaleRule, encode_rows, require_scale, row_width


def write_cache(
    latent: Tensor,
    rope: Tensor,
    slots: Tensor,
    cache: Tensor,
    *,
    cache_format: str,
    scale_format: str = "pow2",
    least_amax: float = 0.0,
    least_scale: float = 1e-4,
    k_scale: float = 1.0,
) -> tuple[()]:
    """Writes the rows and returns nothing.

    The scale rule is that of ``fp8_ds_mla`` rows, ``k_scale`` the one scale of ``fp8_e4m3``. Raises ValueError, before
    anything is written, for an unknown format, shapes or dtypes that do not fit it, and scales that are none.
    """
    sizes = bind_sizes(("latent", latent, "s c"), ("rope", rope, "s r"), ("slots", slots, "s"))
    require_integers(slots=slots)
    require_cache(cache, cache_format, sizes["c"], sizes["r"])
    require_scale("k_scale", k_scale)
    rule = ScaleRule(scale_format, least_amax, least_scale)
    kept = (slots >= 0) & (slots < cache.shape[0] * cache.shape[1])
    rows = encode_rows(latent[kept], rope[kept], cache_format, dtype=cache.dtype, rule=rule, k_scale=k_scale)
    slot = slots[kept].long()
    cache[slot // cache.shape[1], slot % cache.shape[1]] = rows
    return ()


def require_cache(cache: Tensor, cache_format: str, latent: int, rope: int) -> None:
    """Raises ValueError unless ``cache`` holds pages of such rows."""
    width = row_width(cache_format, latent, rope)
    wanted = "floats" if cache_format == "model" else "uint8"
    fits = cache.is_floating_point() and cache.element_size() > 1 if wanted == "floats" else cache.dtype == torch.uint8
    if cache.dim() != 3 or cache.shape[1] < 1 or cache.shape[2] != width or not fits:
        raise ValueError(
            f"cache: expected {wanted} [blocks, block_size, {width}] for {cache_format}, "
            f"got {cache.dtype} {list(cache.shape)}"
        )
