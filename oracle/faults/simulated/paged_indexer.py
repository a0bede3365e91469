"""Simulated ``paged_indexer_scores``: page by page through the block table, then as the ragged indexer does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .indexer import INDEXER_SITES, IndexerSites, indexer_scores

#: Bytes of a scale.
SCALE = 4


def planar(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Codes [page, e] and scales [page] of the bytes of one page: the codes of all keys, then their scales."""
    page = len(raw) // (dim + SCALE)
    codes = raw[: page * dim].view(torch.float8_e4m3fn).view(page, dim)
    return codes, raw[page * dim :].view(torch.float32)


@dataclass(frozen=True, slots=True)
class PagedSites:
    """Error sites of the paged indexer; right by default."""

    scoring: IndexerSites = INDEXER_SITES
    """The arithmetic, once the keys of a request are there."""
    lengths: Callable[[Tensor], Tensor] = lambda context_lens: context_lens
    table: Callable[[Tensor, int], Tensor] = lambda block_table, request: block_table[request]
    """Table row [w] of a request."""
    pages: Callable[[Tensor, int, int], Tensor] = lambda row, length, page: row[: -(-length // page)]
    """Pages in use, from the table row, the context length and the page size."""
    address: Callable[[Tensor, int], Tensor] = lambda pages, count: pages
    """Page that is read for each entry, from the entries and how many pages there are."""
    page: Callable[[Tensor, int], tuple[Tensor, Tensor]] = planar
    """Codes [page, e] and scales [page] from the bytes of one page and e."""
    queries: Callable[[Tensor, int], Tensor] = lambda q, request: q[request]
    rows: Callable[[Tensor, int, int], Tensor] = lambda x, request, m: x[request * m : (request + 1) * m]
    """Weights (and query scales) [m, i] of a request."""
    end: Callable[[int, int, int], int] = lambda length, m, query: length - m + query + 1
    """Keys that a query may see, from the context length, next_n and its number."""
    store: Callable[[Tensor], Tensor] = lambda scores: scores


PAGED_SITES = PagedSites()


def paged_indexer_scores(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    max_model_len: int,
    q_scale: Tensor | None = None,
    sites: PagedSites = PAGED_SITES,
) -> tuple[Tensor]:
    """Shapes: q [b, m, i, e], k_cache uint8 [p, page*(e+4)], weights [b*m, i], context_lens [b], block_table [b, w].

    Returns (scores,) fp32 [b*m, max_model_len], -inf from each query's end on.
    """
    requests, m, _, dim = q.shape
    page = k_cache.shape[1] // (dim + SCALE)
    scores = torch.full((requests * m, max_model_len), float("-inf"), dtype=torch.float32, device=q.device)
    for request, length in enumerate(sites.lengths(context_lens).tolist()):
        used = sites.address(sites.pages(sites.table(block_table, request), length, page), len(k_cache))
        held = [sites.page(k_cache[number], dim) for number in used.clamp(0, len(k_cache) - 1).tolist()]
        if not held or m == 0:
            continue
        codes, scales = (torch.cat(part) for part in zip(*held, strict=True))
        last = [min(sites.end(length, m, query), len(codes)) for query in range(m)]
        ke = torch.tensor(last, dtype=torch.int32, device=q.device)
        (found,) = indexer_scores(
            sites.queries(q, request),
            codes,
            scales,
            sites.rows(weights, request, m),
            torch.zeros_like(ke),
            ke,
            q_scale=None if q_scale is None else sites.rows(q_scale, request, m),
            max_seqlen_k=max_model_len,
            sites=sites.scoring,
        )
        scores[request * m : (request + 1) * m] = found
    return (sites.store(scores),)
