"""Inputs of the layout operators: values to quantise, paged caches to write and to read, indices and selections."""

from __future__ import annotations

import torch
from torch import Tensor

from ..case import Case
from . import patterns, quantised, rng
from .batch import names_of
from .options import pattern_of
from .paged import Pages, first_of_each, new_slots, pages_of
from .poison import poison, poison_of
from .site import Site

TILE = 128
#: Floors by option: (least_amax, least_scale); vLLM's quantisers know all three.
FLOORS = {"amax-1e-10": (1e-10, 0.0), "scale-1e-4": (0.0, 1e-4)}
FLOOR = (1e-4, 0.0)
#: Kinds that rotated dims, which have no block of their own, are drawn in as well.
ROPE_KINDS = ("zeros", "nonfinite", "spread")
#: Scales of a whole cache, none a power of two.
K_SCALES = (0.0371, 0.7, 1.3)


def quantize(site: Site) -> dict[str, object]:
    """x [t, c], a row for every key."""
    case, width = site.case, site.geometry.kv_lora_rank
    block = _tile(width)
    x = site.arena.allocate("x", (case.keys, width), site.dtype)
    tokens = site.batch.k
    rng.fill(x, lambda a, b: quantised.values(case.kind, "x", case.seed, tokens[a:b], width, block, site.dtype))
    least_amax, least_scale = _floor(case, FLOOR)
    return {
        "block": block,
        "scale_format": _scale_format(case),
        "least_amax": least_amax,
        "least_scale": least_scale,
    }


def write_cache(site: Site) -> dict[str, object]:
    """latent [s,c], rope [s,r], slots [s], and the cache as it was before."""
    case, geometry = site.case, site.geometry
    c, r, cache_format = geometry.kv_lora_rank, geometry.qk_rope_head_dim, cache_format_of(case)
    pages = pages_of(site, _row_bytes(cache_format, c, r))
    _place_new(site, "latent", c, _tile(c))
    rope = site.arena.allocate("rope", (case.queries, r), site.dtype)
    tokens = site.batch.q
    if r:
        kind = case.kind if case.kind in ROPE_KINDS else "randn"
        rng.fill(rope, lambda a, b: quantised.values(kind, "rope", case.seed, tokens[a:b], r, r, site.dtype))
    site.arena.place("slots", new_slots(site, pages))
    _allocate_cache(site, pages, cache_format, c, r)
    least_amax, least_scale = _floor(case, (0.0, 1e-4))
    return {
        "cache_format": cache_format,
        "scale_format": _scale_format(case),
        "least_amax": least_amax,
        "least_scale": least_scale,
        "k_scale": _k_scale(case),
    }


def write_index(site: Site) -> dict[str, object]:
    """k [s,e], slots [s], and the pages as they were before."""
    case, e = site.case, _index_dim(site)
    pages = pages_of(site, e + 4)
    _place_new(site, "k", e, e)
    site.arena.place("slots", new_slots(site, pages))
    _allocate_pages(site, pages, e)
    return {"scale_format": _scale_format(case), "least_amax": _floor(case, FLOOR)[0]}


def gather(site: Site) -> dict[str, object]:
    """cache, block_table [b,m], starts [b], cu_k [b+1]: rows that are gathered are drawn, all others are poison."""
    case, geometry = site.case, site.geometry
    c, r, cache_format = geometry.kv_lora_rank, geometry.qk_rope_head_dim, cache_format_of(case)
    pages = pages_of(site, _row_bytes(cache_format, c, r))
    cache = _allocate_cache(site, pages, cache_format, c, r)
    slots, kept = _gathered(site, pages)
    tokens = site.batch.k[kept]
    page, place = slots // pages.size, slots % pages.size
    if cache_format == "model":
        drawn = quantised.values("randn", "kv", case.seed, tokens, c + r, c + r, site.dtype)
        cache[page, place] = rng.cast(drawn, site.dtype)
    elif cache_format == "fp8_e4m3":
        cache[page, place] = quantised.codes(case.kind, "kv", case.seed, tokens, c + r)
    else:
        codes = quantised.codes(case.kind, "kv", case.seed, tokens, c)
        scales = quantised.scales(case.kind, "kv-scale", case.seed, tokens, c // _tile(c))
        rope = quantised.values("randn", "rope", case.seed, tokens, r, max(1, r), torch.bfloat16).to(torch.bfloat16)
        stored = scales.view(torch.uint8).view(len(codes), 4 * scales.shape[1])
        cache[page, place] = torch.cat((codes, stored, rope.view(torch.uint8).view(len(codes), 2 * r)), 1)
    _place_paging(site, pages)
    return {
        "tokens": case.keys,
        "latent": c,
        "rope": r,
        "cache_format": cache_format,
        "k_scale": _k_scale(case),
    }


def gather_index(site: Site) -> dict[str, object]:
    """pages, block_table [b,m], starts [b], cu_k [b+1]."""
    case, e = site.case, _index_dim(site)
    pages = pages_of(site, e + 4)
    held = _allocate_pages(site, pages, e)
    slots, kept = _gathered(site, pages)
    tokens = site.batch.k[kept]
    page, place = (slots // pages.size)[:, None], (slots % pages.size)[:, None]
    at = torch.arange(e, device=site.device)
    held[page, place * e + at] = quantised.codes(case.kind, "k", case.seed, tokens, e)
    scales = quantised.scales(case.kind, "k-scale", case.seed, tokens, 1)
    held[page, pages.size * e + 4 * place + at.new_tensor([0, 1, 2, 3])] = scales.view(torch.uint8).view(-1, 4)
    _place_paging(site, pages)
    return {"tokens": case.keys, "e": e}


def convert_indices(site: Site) -> dict[str, object]:
    """indices [s,k], requests [s], block_table [b,m]."""
    case, q = site.case, site.batch.q
    pages = pages_of(site)
    page_rows = pages.size + (3 if "padded-pages" in case.options else 0)
    blocks, table = pages.blocks, pages.table
    if case.kind == "far":
        # As many pages as int32 can count the rows of; the pages in use are the last ones, and what lies outside
        # comes back into the cache if the product wraps at 32 bits.
        far = 2**31 // page_rows
        wrapped = 2**32 // page_rows + 1 + table.remainder(2)
        stray = torch.where(wrapped < 2**31, wrapped, 2**31 - 1)
        inside = (table >= 0) & (table < blocks)
        table, blocks = torch.where(inside, table + far - blocks, stray), far
    site.int32("indices", _positions(site, table.shape[1] * pages.size))
    requests = q.request
    if "unknown-requests" in case.options:
        drawn = rng.integers(rng.key(case.seed, "unknown"), 8, q.name, q.position)
        requests = torch.where(drawn == 0, -1, torch.where(drawn == 1, len(table) + requests, requests))
    site.int32("requests", requests)
    site.int32("block_table", table)
    options = {"block_size": pages.size, "blocks": blocks, "page_rows": page_rows}
    return {**options, "compact": "compact" in case.options}


def build_mask(site: Site) -> dict[str, object]:
    """indices [s,k], cu_q [b+1], starts [b], lengths [b], and key_starts [b] with ``global``."""
    case, device = site.case, site.device
    keys = torch.tensor(case.k_lens, device=device)
    starts, lengths = torch.zeros_like(keys), keys
    if "chunk" in case.options or "late" in case.options:
        request = torch.tensor(names_of(case), device=device)
        starts = rng.integers(rng.key(case.seed, "chunk"), keys // 2 + 1, request)
        starts += keys // 2 if "late" in case.options else 0
        lengths = (keys - starts + 1) // 2 + rng.integers(rng.key(case.seed, "span"), (keys - starts) // 2 + 1, request)
    site.int32("indices", _positions(site, int(keys.max())))
    site.int32("cu_q", site.batch.cu_q)
    site.int32("starts", starts)
    site.int32("lengths", lengths)
    if "global" in case.options:
        site.int32("key_starts", site.batch.cu_k[:-1] + 1000)
    most, longest = max(case.q_lens), int(lengths.max())
    tile = 128 if most <= 128 else 256
    words = -(-longest // 32) + ("global" in case.options)
    return {"rows": -(-max(1, most) // tile) * tile, "words": -(-max(1, words) // 4) * 4}


def cache_format_of(case: Case) -> str:
    return next((option for option in case.options if option in ("fp8_e4m3", "fp8_ds_mla")), "model")


def _tile(c: int) -> int:
    return min(TILE, c)


def _row_bytes(cache_format: str, c: int, r: int) -> int:
    """Elements of a row."""
    return c + r if cache_format != "fp8_ds_mla" else c + 4 * (c // _tile(c)) + 2 * r


def _scale_format(case: Case) -> str:
    return next((name for name in ("ue8m0", "fp32-scales") if name in case.options), "pow2").removesuffix("-scales")


def _floor(case: Case, otherwise: tuple[float, float]) -> tuple[float, float]:
    return next((FLOORS[option] for option in case.options if option in FLOORS), otherwise)


def _k_scale(case: Case) -> float:
    return K_SCALES[(rng.key(case.seed, "k_scale") & 0xFFFF) % len(K_SCALES)]


def _index_dim(site: Site) -> int:
    assert site.geometry.index_head_dim is not None
    return site.geometry.index_head_dim


def _place_new(site: Site, name: str, width: int, block: int) -> None:
    """Values of the new tokens, [s, width]."""
    case, tokens = site.case, site.batch.q
    target = site.arena.allocate(name, (case.queries, width), site.dtype)
    # What is divided by one scale for all meets the edges of codes where it is a multiple of that scale.
    unit = _k_scale(case) if case.kind == "edges" and cache_format_of(case) == "fp8_e4m3" else 1.0

    def rows(start: int, stop: int) -> Tensor:
        return quantised.values(case.kind, name, case.seed, tokens[start:stop], width, block, site.dtype) * unit

    rng.fill(target, rows)


def _allocate_cache(site: Site, pages: Pages, cache_format: str, c: int, r: int) -> Tensor:
    """[blocks, size, width], full of poison."""
    width = _row_bytes(cache_format, c, r)
    dtype = site.dtype if cache_format == "model" else torch.uint8
    return _allocate(site, "cache", pages, (pages.blocks, pages.size, width), dtype)


def _allocate_pages(site: Site, pages: Pages, e: int) -> Tensor:
    """[blocks, size (e + 4)], full of poison."""
    return _allocate(site, "pages", pages, (pages.blocks, pages.size * (e + 4)), torch.uint8)


def _allocate(site: Site, name: str, pages: Pages, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # Gigabytes of pages in front are real memory on a GPU, and addresses that nobody touches on a CPU.
    first = pages.first if site.device.type == "cpu" else 0
    allocate = site.arena.allocate
    target = site.arena.allocate_far(name, shape, dtype, first) if first else allocate(name, shape, dtype)
    kind, seed, width = poison_of(site.case.options, site.case.seed), site.case.seed, shape[-1]
    bad = poison(kind, seed, name, width, dtype)

    def rows(start: int, stop: int) -> Tensor:
        per_page = shape[1] if len(shape) == 3 else 1
        number = torch.arange((first + start) * per_page, (first + stop) * per_page, device=site.device)
        filled = quantised.filler(kind, seed, number, width) if dtype is torch.uint8 else bad(number)
        return filled.view(stop - start, *shape[1:])

    rng.fill(target[first:], rows)
    return target


def _gathered(site: Site, pages: Pages) -> tuple[Tensor, Tensor]:
    """Slots of the gathered tokens that have one, and which tokens these are; of tokens that share one the first."""
    k = site.batch.k
    slots = pages.slots(k.request, k.position + pages.starts[k.request])
    kept = torch.nonzero(slots >= 0).flatten()
    if "shared" in site.case.options:
        kept = kept[first_of_each(slots[kept])]
    return slots[kept], kept


def _place_paging(site: Site, pages: Pages) -> None:
    site.int32("block_table", pages.table)
    site.int32("starts", pages.starts)
    site.int32("cu_k", site.batch.cu_k)


def _positions(site: Site, reach: int) -> Tensor:
    """Request-local positions [s,k] in the case's pattern; ``reach`` positions can be named at all."""
    case, q = site.case, site.batch.q
    local = patterns.positions(pattern_of(case), case.seed, case.topk, q, q.visible())
    if "empty-rows" in case.options:
        local = torch.where(patterns.empty_rows(case.seed, q)[:, None], -1, local)
    if pattern_of(case) == "invalid":
        return torch.where(local >= 0, local, patterns.invalid_values(case.seed, reach, q, case.topk))
    return local
