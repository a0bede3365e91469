"""Gathering cached rows of requests into one packed tensor, dequantised: the context of a prefill, or a chunk of it.

    rows[t] = decoded cache row of position starts[b] + t - cu_k[b] of the request b that t belongs to

A position without a place (the block table does not reach it, or names a page outside the cache) gives a row of zeros.
Values of quantised caches are code * scale in fp32, then bf16; rotated dims of ``fp8_ds_mla`` are bf16 already.

Source: vLLM 0.33.0 ``gather_and_maybe_dequant_cache``, ``cp_gather_and_upconvert_fp8_kv_cache``.

Shapes:
    cache: [blocks, block_size, c+r], or uint8 [blocks, block_size, width]    block_table: int32 [b, most pages]
    starts: int [b]    cu_k: int [b+1]    rows: [t, c+r] in the dtype of the cache, bf16 for bytes
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes
from .layouts import decode_rows
from .paging import place_of, positions_of
from .write_cache import require_cache


def gather(
    cache: Tensor,
    block_table: Tensor,
    starts: Tensor,
    cu_k: Tensor,
    *,
    tokens: int,
    latent: int,
    rope: int,
    cache_format: str,
    k_scale: float = 1.0,
) -> tuple[Tensor]:
    """Rows of ``tokens`` = cu_k[b] positions; ``latent`` and ``rope`` are c and r.

    Raises ValueError for an unknown format, a cache that does not fit it, prefix sums that do not add up to ``tokens``,
    and a ``k_scale`` that is none.
    """
    require_cache(cache, cache_format, latent, rope)
    request, position = positions_of(starts, cu_k, tokens)
    bind_sizes(("starts", starts, "b"), ("block_table", block_table, "b m"))
    page, place = place_of(block_table, request, position, cache.shape[1], cache.shape[0])
    held = page >= 0
    out = torch.bfloat16 if cache.dtype == torch.uint8 else cache.dtype
    rows = torch.zeros(tokens, latent + rope, dtype=out, device=cache.device)
    rows[held] = decode_rows(cache[page[held], place[held]], cache_format, latent=latent, k_scale=k_scale).to(out)
    return (rows,)
