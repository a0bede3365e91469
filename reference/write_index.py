"""Quantising new keys of the indexer into its paged cache, in place.

    codes and scale of key s, by ``quantize`` over the whole head dim, go to place slots[s] % block_size of page
    slots[s] // block_size: code j to byte place * e + j, the fp32 scale to byte block_size * e + 4 place

A slot is ignored if it is negative (padding) or beyond the last page. All else in the pages keeps its bytes.

Source: vLLM 0.33.0 ``indexer_k_quant_and_cache``; ``layouts.index_pages``.

Shapes:
    k: [s, e]    slots: int64 [s]    pages: uint8 [blocks, block_size * (e + 4)]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, require_integers
from .layouts import SCALE_BYTES, ScaleRule, block_scales, encode_e4m3, index_page_size


def write_index(
    k: Tensor, slots: Tensor, pages: Tensor, *, scale_format: str = "pow2", least_amax: float = 1e-4
) -> tuple[()]:
    """Writes the keys and returns nothing.

    Raises ValueError, before anything is written, for pages that do not hold a whole number of tokens, other shapes
    that do not fit, ue8m0 (the page stores fp32) and a floor that is not positive.
    """
    sizes = bind_sizes(("k", k, "s e"), ("slots", slots, "s"))
    require_integers(slots=slots)
    size, e = index_page_size(pages, sizes["e"]), sizes["e"]
    if scale_format == "ue8m0":
        raise ValueError("scale_format: pages of the indexer store fp32 scales, expected fp32 or pow2, got ue8m0")
    rule = ScaleRule(scale_format, least_amax)
    kept = (slots >= 0) & (slots < len(pages) * size)
    keys, slot = k[kept].to(torch.float32), slots[kept].long()
    page, place = slot // size, slot % size
    scales = block_scales(keys, rule)
    code_at = (place * e)[:, None] + torch.arange(e, device=k.device)
    scale_at = (size * e + SCALE_BYTES * place)[:, None] + torch.arange(SCALE_BYTES, device=k.device)
    pages[page[:, None], code_at] = encode_e4m3(keys / scales[:, None])
    pages[page[:, None], scale_at] = scales.contiguous().view(torch.uint8).view(-1, SCALE_BYTES)
    return ()
