"""Pages of the indexer's cache in plain torch: codes of all tokens first, then their scales."""

from __future__ import annotations

import torch
from torch import Tensor

from .paging import locate
from .quantiser import check_rule, codes_of, scales


def write_index(
    k: Tensor, slots: Tensor, pages: Tensor, *, scale_format: str = "pow2", least_amax: float = 1e-4
) -> tuple[()]:
    """k [s,e], slots int64 [s] -> pages uint8 [blocks,block_size*(e+4)], in place.

    Slots outside the cache are not written. Raises ValueError for what does not fit, before anything is written.
    """
    check_rule(scale_format, least_amax, 0.0, ("fp32", "pow2"))
    e = k.shape[1]
    codes, stored, size = _planes(pages, e)
    kept = torch.nonzero((slots >= 0) & (slots < len(pages) * size)).flatten()
    keys, slot = k[kept].float(), slots[kept]
    scale = scales(keys, scale_format, least_amax, 0.0)
    codes[slot // size, slot % size] = codes_of(keys / scale[:, None]).view(torch.uint8)
    stored[slot // size, slot % size] = scale.view(torch.uint8).view(-1, 4)
    return ()


def gather_index(
    pages: Tensor, block_table: Tensor, starts: Tensor, cu_k: Tensor, *, tokens: int, e: int
) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn [t,e] and scales fp32 [t] of the positions from ``starts`` on of every request.

    A position without a page in the cache gives zeros. Raises ValueError for what does not fit.
    """
    codes, stored, size = _planes(pages, e)
    slot = locate(starts, cu_k, block_table, size, len(pages), tokens)
    held = torch.nonzero(slot >= 0).flatten()
    place = slot[held] // size, slot[held] % size
    k = torch.zeros(tokens, e, dtype=torch.uint8, device=pages.device)
    scale = torch.zeros(tokens, 4, dtype=torch.uint8, device=pages.device)
    k[held], scale[held] = codes[place], stored[place]
    return k.view(torch.float8_e4m3fn), scale.view(torch.float32).view(tokens)


def _planes(pages: Tensor, e: int) -> tuple[Tensor, Tensor, int]:
    """Views of the codes [blocks,size,e] and the scale bytes [blocks,size,4]."""
    if pages.dim() != 2 or pages.dtype is not torch.uint8 or not pages.shape[1] or pages.shape[1] % (e + 4):
        raise ValueError(f"pages: expected uint8 [blocks, block_size * {e + 4}], got {pages.dtype} {list(pages.shape)}")
    size = pages.shape[1] // (e + 4)
    return pages[:, : size * e].view(len(pages), size, e), pages[:, size * e :].view(len(pages), size, 4), size
