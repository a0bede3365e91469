"""Caches as known mistakes see them: scales by their exponent, pages as rows, rows as pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

SCALE_BYTES = 4
_EXPONENT = -0x800000  # FF800000: sign and exponent of an fp32


def scales_cut(a: Mapping[str, Any], name: str) -> Tensor:
    """The cache ``name`` with every stored fp32 scale cut to its exponent, as a reader of ue8m0 sees it."""
    return scales_read(a, name, "ue8m0")


def scales_read(a: Mapping[str, Any], name: str, how: Literal["fp32", "ue8m0", "bf16"]) -> Tensor:
    """The cache ``name`` with every stored fp32 scale as a reader of that kind sees it."""
    cache: Tensor = a[name]
    if name == "pages":
        first, stop = cache.shape[1] // (a["e"] + SCALE_BYTES) * a["e"], cache.shape[1]
    elif a["cache_format"] == "fp8_ds_mla":
        first, stop = a["latent"], cache.shape[2] - 2 * a["rope"]
    else:
        return cache
    return scales_as(how, cache, first, stop)


def scales_as(how: Literal["fp32", "ue8m0", "bf16"], cache: Tensor, first: int, stop: int) -> Tensor:
    """A cache uint8 [..., width] with the fp32 scales at bytes ``first`` to ``stop`` of each row as they are read: as
    they are, cut to their exponent, or rounded to the nearest bf16."""
    if how == "fp32":
        return cache
    seen, stored = cache.clone(), cache[..., first:stop].contiguous()
    if how == "ue8m0":
        read = stored.view(torch.int32) & _EXPONENT
    else:
        read = stored.view(torch.float32).bfloat16().float().contiguous()
    seen[..., first:stop] = read.view(torch.uint8)
    return seen


def rows_to_planes(pages: Tensor, e: int) -> Tensor:
    """Pages of e codes and a scale a token, side by side, as pages of all codes and then all scales."""
    rows = pages.reshape(len(pages), -1, e + SCALE_BYTES)
    return torch.cat((rows[..., :e].flatten(1), rows[..., e:].flatten(1)), 1)


def planes_to_rows(pages: Tensor, e: int) -> Tensor:
    """The way back."""
    size = pages.shape[1] // (e + SCALE_BYTES)
    codes, scales = pages[:, : size * e].reshape(-1, size, e), pages[:, size * e :].reshape(-1, size, 4)
    return torch.cat((codes, scales), 2).flatten(1)


def outside(table: Tensor, blocks: int) -> Tensor:
    """Entries of a block table that name no page of the cache."""
    return (table < 0) | (table >= blocks)


def named_pages(cache: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The same cache and block table on the pages that are named alone, where most are not: it may exceed memory."""
    if len(cache) <= 4 * table.numel() + 64:
        return cache, table
    kept = ~outside(table, len(cache))
    named, place = torch.unique(table[kept], return_inverse=True)
    renamed = torch.full_like(table, -1)
    renamed[kept] = place.to(table.dtype)
    return cache[named.long()], renamed
