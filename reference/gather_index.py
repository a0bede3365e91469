"""Gathering cached keys of the indexer into packed codes and scales: what prefill scores are computed from.

    k[t], k_scale[t] = codes and scale at position starts[b] + t - cu_k[b] of the request b that t belongs to

A position without a place gives zero codes and a zero scale.

Source: vLLM 0.33.0 ``cp_gather_indexer_k_quant_cache``; ``layouts.index_pages`` for the bytes.

Shapes:
    pages: uint8 [blocks, block_size * (e + 4)]    block_table: int32 [b, most pages]    starts: int [b]
    cu_k: int [b+1]    k: float8_e4m3fn [t, e]    k_scale: fp32 [t]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes
from .layouts import decode_index_pages, index_page_size
from .paging import place_of, positions_of


def gather_index(
    pages: Tensor, block_table: Tensor, starts: Tensor, cu_k: Tensor, *, tokens: int, e: int
) -> tuple[Tensor, Tensor]:
    """Codes and scales of ``tokens`` = cu_k[b] positions.

    Raises ValueError for pages that do not hold a whole number of tokens and prefix sums that do not fit.
    """
    size = index_page_size(pages, e)
    request, position = positions_of(starts, cu_k, tokens)
    bind_sizes(("starts", starts, "b"), ("block_table", block_table, "b m"))
    page, place = place_of(block_table, request, position, size, len(pages))
    held = page >= 0
    k = torch.zeros(tokens, e, dtype=torch.uint8, device=pages.device)
    scale = torch.zeros(tokens, dtype=torch.float32, device=pages.device)
    named, which = torch.unique(page[held], return_inverse=True)
    codes, scales = decode_index_pages(pages[named], e=e)
    k[held], scale[held] = codes[which, place[held]], scales[which, place[held]]
    return k.view(torch.float8_e4m3fn), scale
