"""Inputs of ``paged_indexer_scores``: keys on permuted planar pages, most of what surrounds them poison."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rng, scores
from .paged import first_of_each
from .poison import HUGE_SCALE, poison, poison_of
from .ranking import place_weights
from .site import Site

#: Keys a page, as the engines have it.
PAGE = 64
#: Pages that belong to no request, and table columns beyond the longest request's.
SPARE = 3
SCALE_BYTES = 4


def paged_indexer_scores(site: Site) -> dict[str, object]:
    """q e4m3 [b,m,i,e], k_cache uint8 [p,64*(e+4)], weights fp32 [b*m,i], context_lens [b], block_table [b,w].

    Returns max_model_len: as many columns as the longest context has keys, or, by the seed, a page more. The pages of
    all requests are permuted and page 0 belongs to none, or they fill the cache in order (``packed``). Unused entries
    of the table name pages that hold other requests' keys, none or lie outside; slots behind a context hold poison.
    """
    case, batch, width = site.case, site.batch, site.geometry.index_head_dim
    assert width is not None
    requests, m = len(case.q_lens), case.q_lens[0]
    q = site.arena.allocate("q", (requests, m, case.heads, width), site.dtype)

    def queries(start: int, stop: int) -> Tensor:
        part = batch.q[start * m : stop * m]
        return scores.index_vectors(case.kind, "q", case.seed, part, case.heads, width).view(-1, m, case.heads, width)

    rng.fill(q, queries)
    held = [-(-keys // PAGE) for keys in case.k_lens]
    shared = "shared" in case.options and held[0] > 0
    offset = 2**31 // (PAGE * (width + SCALE_BYTES)) + 1 if "hugerows" in case.options else 0
    if "packed" in case.options:
        order, count = torch.arange(max(1, sum(held)), device=site.device) + offset, offset + max(1, sum(held))
    else:
        order = rng.permutation(rng.key(case.seed, "pages"), sum(held) + SPARE - 1, device=site.device) + 1 + offset
        count = offset + sum(held) + SPARE
    table = _table(site, order, held, count)
    if shared:
        table[:, 0] = torch.where(torch.tensor(held, device=site.device) > 0, table[0, 0], table[:, 0])
    _fill_cache(site, table, count, offset, width)
    place_weights(site, width)
    site.int32("context_lens", torch.tensor(case.k_lens, device=site.device))
    site.int32("block_table", table)
    return {"max_model_len": max(case.k_lens) + PAGE * (rng.key(case.seed, "max-model-len") & 1)}


def _table(site: Site, order: Tensor, held: list[int], count: int) -> Tensor:
    """Block table int64 [b, w]: a request's pages, then pages of anybody, -1 and numbers outside the cache."""
    request = torch.arange(len(held), device=site.device)[:, None]
    column = torch.arange(max(held) + SPARE, device=site.device)
    other = rng.integers(rng.key(site.case.seed, "table"), count, request, column)
    other = torch.where(other % 4 == 0, -1, torch.where(other % 4 == 1, 2**31 - 1 - other, other))
    used = column < torch.tensor(held, device=site.device)[:, None]
    first = torch.tensor([sum(held[:i]) for i in range(len(held))], device=site.device)[:, None]
    return torch.where(used, order[(first + column).clamp(max=len(order) - 1)], other)


def _fill_cache(site: Site, table: Tensor, count: int, offset: int, width: int) -> None:
    case, tokens = site.case, site.batch.k
    shape = (count, PAGE * (width + SCALE_BYTES))
    # Gigabytes of pages in front are real memory on a GPU, and pages that nobody touches on a CPU.
    far = bool(offset) and site.device.type == "cpu"
    cache = (
        site.arena.allocate_far("k_cache", shape, torch.uint8, offset)
        if far
        else site.arena.allocate("k_cache", shape, torch.uint8)
    )
    codes = cache[:, : PAGE * width].view(torch.float8_e4m3fn)
    codes = codes.as_strided((count, PAGE, width), (cache.stride(0), width, 1))
    scale = cache[:, PAGE * width :].view(torch.float32)
    name = poison_of(case.options, case.seed)
    bad = poison(name, case.seed, "k", width, torch.float8_e4m3fn)
    spoilt = poison(name, case.seed, "k-scale", 1, torch.float32, HUGE_SCALE[torch.float8_e4m3fn])
    start = offset if far else 0

    def poisoned(first: int, last: int) -> None:
        number = torch.arange(PAGE * (start + first), PAGE * (start + last), device=site.device)
        codes[start + first : start + last] = rng.cast(bad(number), torch.float8_e4m3fn).view(-1, PAGE, width)
        scale[start + first : start + last] = spoilt(number).view(-1, PAGE)

    rng.by_chunks(count - start, shape[1], site.device, poisoned)
    page, slot = table[tokens.request, tokens.position // PAGE], tokens.position % PAGE
    if "shared" in case.options:
        kept = first_of_each(page * PAGE + slot)
        tokens, page, slot = tokens[kept], page[kept], slot[kept]
    factor = scores.key_scales(case.kind, case.seed, tokens)

    def put(first: int, last: int) -> None:
        drawn = scores.index_vectors(case.kind, "k", case.seed, tokens[first:last], 1, width)[:, 0]
        narrow = rng.cast(drawn, torch.float8_e4m3fn)
        codes.view(torch.uint8)[page[first:last], slot[first:last]] = narrow.view(torch.uint8)
        scale[page[first:last], slot[first:last]] = factor[first:last]

    rng.by_chunks(len(page), width, site.device, put)
