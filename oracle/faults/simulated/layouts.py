"""Simulated layout operators: bytes moved and converted in the steps that kernels take, with every error site named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn


def largest(blocks: Tensor) -> Tensor:
    """Largest finite size of each block."""
    return torch.where(blocks.isfinite(), blocks.abs(), 0.0).amax(-1)


def floored(amax: Tensor, least_amax: float, least_scale: float) -> Tensor:
    # By a tensor: on a GPU torch multiplies with the rounded reciprocal of a number instead.
    return (amax.clamp_min(least_amax) / torch.full_like(amax, 448.0)).clamp_min(least_scale)


def raised(scale: Tensor) -> Tensor:
    """The next power of two, by a carry into the exponent."""
    return ((scale.contiguous().view(torch.int32) + 0x7FFFFF) & -0x800000).view(torch.float32)


def coded(quotient: Tensor) -> Tensor:
    """Codes uint8, saturated."""
    return quotient.clamp(-448.0, 448.0).to(E4M3).view(torch.uint8)


def row_of(codes: Tensor, scales: Tensor, rope: Tensor) -> Tensor:
    """Bytes [n, width] of a row: codes, scales, rotated dims in bf16."""
    parts = (codes, scales.contiguous().view(torch.uint8), rope.to(torch.bfloat16).contiguous().view(torch.uint8))
    return torch.cat([part.reshape(len(codes), -1) for part in parts], 1)


@dataclass(frozen=True, slots=True)
class LayoutSites:
    """Every field is right by default."""

    # Quantisation.
    amax: Callable[[Tensor], Tensor] = largest
    floor: Callable[[Tensor, float, float], Tensor] = floored
    raise_scale: Callable[[Tensor], Tensor] = raised
    quotient: Callable[[Tensor, Tensor], Tensor] = lambda x, scale: x / scale
    code: Callable[[Tensor], Tensor] = coded
    exponent: Callable[[Tensor], Tensor] = lambda scale: (scale.view(torch.int32) >> 23).to(torch.uint8)
    stored: Callable[[Tensor], Tensor] = lambda scale: scale
    """Scales as they go to memory, after the values were divided by them."""

    # Rows and pages.
    row: Callable[[Tensor, Tensor, Tensor], Tensor] = row_of
    slots: Callable[[Tensor, int], Tensor] = lambda slots, rows: slots
    """Slots as the kernel understands them, and how many there are."""
    kept: Callable[[Tensor, int], Tensor] = lambda slots, rows: (slots >= 0) & (slots < rows)
    code_at: Callable[[Tensor, int, int], Tensor] = lambda place, size, e: place * e
    """First byte of the codes of a place in a page."""
    scale_at: Callable[[Tensor, int, int], Tensor] = lambda place, size, e: size * e + 4 * place
    page: Callable[[Tensor, int], Tensor] = lambda page, blocks: page
    """Page that is read or written, and how many there are."""

    # Reading.
    request: Callable[[Tensor, Tensor], Tensor] = lambda cu, token: torch.searchsorted(cu[1:], token, right=True)
    position: Callable[[Tensor, Tensor], Tensor] = lambda offset, start: offset + start
    column: Callable[[Tensor, int], Tensor] = lambda position, size: position // size
    reached: Callable[[Tensor, Tensor, int], Tensor] = lambda position, column, most: (position >= 0) & (column < most)
    """Whether the block table, so many entries wide, has one for a position."""
    entry: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda table, request, column: table[request, column]
    held: Callable[[Tensor, int], Tensor] = lambda page, blocks: (page >= 0) & (page < blocks)
    place: Callable[[Tensor, int], Tensor] = lambda position, size: position % size
    value: Callable[[Tensor], Tensor] = lambda codes: codes.contiguous().view(E4M3).float()
    scale: Callable[[Tensor], Tensor] = lambda scale: scale
    """Stored scales as they are read."""
    product: Callable[[Tensor, Tensor], Tensor] = lambda values, scale: values * scale
    narrow: Callable[[Tensor], Tensor] = lambda values: values.to(torch.bfloat16)
    missing: Callable[[Tensor], Tensor] = torch.zeros_like
    """What a token without a place gets."""

    # Indices and masks.
    row_number: Callable[[Tensor, int, Tensor], Tensor] = lambda page, page_rows, place: page * page_rows + place
    invalid: int = -1
    compact: Callable[[Tensor, Tensor], Tensor] = lambda rows, valid: rows.gather(
        1, (~valid).to(torch.uint8).argsort(dim=1, stable=True)
    )
    count: Callable[[Tensor], Tensor] = lambda valid: valid.sum(1)
    local: Callable[[Tensor, Tensor], Tensor] = lambda positions, start: positions - start
    in_span: Callable[[Tensor, Tensor], Tensor] = lambda local, length: (local >= 0) & (local < length)
    word: Callable[[Tensor], Tensor] = lambda bit: bit >> 5
    bit: Callable[[Tensor], Tensor] = lambda bit: bit & 31
    combine: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda mask, word, value: _or(mask, word, value)
    """Flat mask int64 after the words named take the bits."""
    key_start_at: Callable[[int], int] = lambda words: words - 1


LAYOUT_SITES = LayoutSites()


def _or(mask: Tensor, word: Tensor, value: Tensor) -> Tensor:
    for shift in range(32):
        hit = word[value == 1 << shift]
        mask[hit] |= 1 << shift
    return mask


def _scales(tiles: Tensor, a: dict[str, Any], sites: LayoutSites) -> Tensor:
    scale = sites.floor(sites.amax(tiles), a.get("least_amax", 0.0), a.get("least_scale", 0.0))
    return scale if a["scale_format"] == "fp32" else sites.raise_scale(scale)


def quantize(x: Tensor, *, block: int, sites: LayoutSites = LAYOUT_SITES, **rule: Any) -> tuple[Tensor, Tensor]:
    """x [s, w] -> codes float8_e4m3fn [s, w], scales [s, w / block]."""
    tiles = x.float().reshape(len(x), x.shape[1] // block, block)
    scale = _scales(tiles, rule, sites)
    codes = sites.code(sites.quotient(tiles, scale[..., None])).flatten(1)
    return codes.view(E4M3), sites.exponent(scale) if rule["scale_format"] == "ue8m0" else sites.stored(scale)


def write_cache(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, sites: LayoutSites = LAYOUT_SITES, **a: Any
) -> tuple[()]:
    """latent [s, c], rope [s, r], slots [s] -> cache [blocks, size, width], in place."""
    blocks, size, _ = cache.shape
    kept, slot = sites.kept(slots, blocks * size), sites.slots(slots, blocks * size)
    latent, rope, slot = latent[kept].float(), rope[kept].float(), slot[kept]
    if a["cache_format"] == "fp8_ds_mla":
        width = min(128, latent.shape[1])
        tiles = latent.reshape(len(latent), latent.shape[1] // width, width)
        scale = _scales(tiles, a, sites)
        codes = sites.code(sites.quotient(tiles, scale[..., None])).flatten(1)
        rows = sites.row(codes, sites.stored(scale), rope)
    elif a["cache_format"] == "fp8_e4m3":
        k_scale = torch.tensor(a["k_scale"], device=cache.device)
        rows = sites.code(sites.quotient(torch.cat((latent, rope), 1), k_scale))
    else:
        rows = torch.cat((latent, rope), 1).to(cache.dtype)
    cache[sites.page(slot // size, blocks), sites.place(slot, size)] = rows
    return ()


def write_index(k: Tensor, slots: Tensor, pages: Tensor, *, sites: LayoutSites = LAYOUT_SITES, **a: Any) -> tuple[()]:
    """k [s, e], slots [s] -> pages [blocks, size (e + 4)], in place."""
    blocks, e = len(pages), k.shape[1]
    size = pages.shape[1] // (e + 4)
    kept, slot = sites.kept(slots, blocks * size), sites.slots(slots, blocks * size)
    keys, slot = k[kept].float(), slot[kept]
    scale = _scales(keys, a, sites)
    codes = sites.code(sites.quotient(keys, scale[:, None]))
    page, place = sites.page(slot // size, blocks)[:, None], sites.place(slot, size)
    lanes = torch.arange(max(e, 4), device=k.device)
    pages[page, sites.code_at(place, size, e)[:, None] + lanes[:e]] = codes
    stored = sites.stored(scale).contiguous().view(torch.uint8).view(-1, 4)
    pages[page, sites.scale_at(place, size, e)[:, None] + lanes[:4]] = stored
    return ()


def _find(
    table: Tensor, starts: Tensor, cu_k: Tensor, tokens: int, size: int, blocks: int, sites: LayoutSites
) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens have a place, and the page and place of these."""
    token = torch.arange(tokens, device=table.device)
    request = sites.request(cu_k.long(), token).clamp(max=len(starts) - 1)
    position = sites.position(token - cu_k.long()[request], starts.long()[request])
    column = sites.column(position, size)
    reached = sites.reached(position, column, table.shape[1])
    page = sites.entry(table, request, torch.where(reached, column, 0)).long()
    held = torch.nonzero(reached & sites.held(page, blocks)).flatten()
    return held, sites.page(page[held], blocks), sites.place(position[held], size)


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
    k_scale: float,
    sites: LayoutSites = LAYOUT_SITES,
) -> tuple[Tensor]:
    """rows [t, c+r]."""
    blocks, size, _ = cache.shape
    held, page, place = _find(block_table, starts, cu_k, tokens, size, blocks, sites)
    stored = cache[page, place]
    dtype = torch.bfloat16 if cache.dtype is torch.uint8 else cache.dtype
    rows = sites.missing(torch.zeros(tokens, latent + rope, dtype=dtype, device=cache.device))
    if cache_format == "fp8_ds_mla":
        tiles = latent // min(128, latent)
        at = latent + 4 * tiles
        scale = sites.scale(stored[:, latent:at].contiguous().view(torch.float32))
        values = sites.product(
            sites.value(stored[:, :latent]).reshape(len(held), tiles, latent // tiles), scale[..., None]
        )
        rotated = stored[:, at:].contiguous().view(torch.bfloat16)
        rows[held] = torch.cat((sites.narrow(values.flatten(1)), rotated), 1)
    elif cache_format == "fp8_e4m3":
        rows[held] = sites.narrow(sites.product(sites.value(stored), torch.tensor(k_scale, device=cache.device)))
    else:
        rows[held] = stored
    return (rows,)


def gather_index(
    pages: Tensor,
    block_table: Tensor,
    starts: Tensor,
    cu_k: Tensor,
    *,
    tokens: int,
    e: int,
    sites: LayoutSites = LAYOUT_SITES,
) -> tuple[Tensor, Tensor]:
    """k float8_e4m3fn [t, e], k_scale fp32 [t]."""
    size = pages.shape[1] // (e + 4)
    held, page, place = _find(block_table, starts, cu_k, tokens, size, len(pages), sites)
    lanes = torch.arange(max(e, 4), device=pages.device)
    k = sites.missing(torch.zeros(tokens, e, dtype=torch.uint8, device=pages.device))
    scale = torch.zeros(tokens, dtype=torch.float32, device=pages.device)
    k[held] = pages[page[:, None], sites.code_at(place, size, e)[:, None] + lanes[:e]]
    stored = pages[page[:, None], sites.scale_at(place, size, e)[:, None] + lanes[:4]]
    scale[held] = sites.scale(stored.view(torch.float32).flatten())
    return k.view(E4M3), scale


def convert_indices(
    indices: Tensor,
    requests: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    blocks: int,
    page_rows: int,
    compact: bool,
    sites: LayoutSites = LAYOUT_SITES,
) -> tuple[Tensor, Tensor]:
    """physical int32 [s, k], counts int32 [s]."""
    known = (requests >= 0) & (requests < len(block_table))
    position = torch.where(known[:, None], indices.long(), -1)
    column = sites.column(position, block_size)
    reached = sites.reached(position, column, block_table.shape[1]) & known[:, None]
    request = torch.where(known, requests.long(), 0)[:, None].expand_as(column)
    if block_table.numel():
        page = sites.entry(block_table, request, torch.where(reached, column, 0)).long()
    else:
        page = torch.full_like(column, -1)
    valid = reached & sites.held(page, blocks)
    rows = sites.row_number(page, page_rows, sites.place(position, block_size))
    rows = torch.where(valid, rows, sites.invalid)
    rows = sites.compact(rows, valid) if compact else rows
    return rows.to(torch.int32), sites.count(valid).to(torch.int32)


def build_mask(
    indices: Tensor,
    cu_q: Tensor,
    starts: Tensor,
    lengths: Tensor,
    *,
    rows: int,
    words: int,
    key_starts: Tensor | None = None,
    sites: LayoutSites = LAYOUT_SITES,
) -> tuple[Tensor]:
    """mask int32 [b, rows, words]."""
    query = torch.arange(len(indices), device=indices.device)
    request = sites.request(cu_q.long(), query).clamp(max=len(starts) - 1)
    local = sites.local(indices.long(), starts.long()[request][:, None])
    span = sites.in_span(local, lengths.long()[request][:, None]) & (indices >= 0)
    span = span & (local < 32 * (words - (key_starts is not None)))
    row = (query - cu_q.long()[request]) % rows
    word = (request * rows + row)[:, None] * words + sites.word(local.clamp(min=0)).clamp(max=words - 1)
    mask = torch.zeros(len(starts) * rows * words, dtype=torch.int64, device=indices.device)
    mask = sites.combine(mask, word[span], (1 << sites.bit(local.clamp(min=0)))[span]) & 0xFFFFFFFF
    mask = torch.where(mask >= 2**31, mask - 2**32, mask).to(torch.int32).view(len(starts), rows, words)
    if key_starts is not None:
        mask[:, 0, sites.key_start_at(words)] = key_starts
    return (mask,)
