"""Lightning-indexer scores of decoding requests, whose keys lie on the pages of a quantised cache.

    scores[b m + j, t] = score of query j of request b and its key t    for t < context_lens[b] - m + j + 1, else -inf

as ``indexer_scores`` has it, with the key on page block_table[b, t // page], slot t mod page. The m queries of a
request (``next_n``: one, and the drafted tokens) are its last tokens, so each sees one key more than the one before; a
context shorter than that leaves the first ones without a key.

A page is planar, as in ``layouts.index_pages``: the e4m3 codes of all its keys, then their fp32 scales.

Source: DeepGEMM at 54e2261, ``fp8_paged_mqa_logits``; vLLM 0.33.0 ``sparse_attn_indexer.py`` for pages and ends.

Shapes, with m = next_n, p pages of ``page`` keys and w table columns:
    q: [b, m, i, e]    k_cache: uint8 [p, page * (e + 4)]    weights: [b * m, i]    context_lens: int [b]
    block_table: int [b, w]    q_scale: [b * m, i]    scores: [b * m, max_model_len]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype, require_integers
from .indexer_scores import indexer_scores
from .layouts import decode_index_pages, index_page_size


def paged_indexer_scores(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    max_model_len: int,
    q_scale: Tensor | None = None,
) -> tuple[Tensor]:
    """Scores of every query over its request's keys, -inf from its end on, in the compute dtype.

    Raises ValueError for shapes that do not fit, a context longer than the table or the scores have room for, and a
    page in use that the cache does not have.
    """
    sizes = bind_sizes(("q", q, "b m i e"), ("context_lens", context_lens, "b"), ("block_table", block_table, "b w"))
    b, m = q.shape[:2]
    bind_sizes(("q", q.reshape(b * m, *q.shape[2:]), "s i e"), ("weights", weights, "s i"))
    dtype = compute_dtype(q, weights)
    scores = torch.full((b * m, max_model_len), -torch.inf, dtype=dtype, device=q.device)
    for request, length in enumerate(context_lens.tolist()):
        k, k_scale = keys_of(k_cache, block_table[request], length, sizes["e"])
        rows = slice(request * m, (request + 1) * m)
        ke = ends(length, m, q.device)
        (scores[rows],) = indexer_scores(
            q[request],
            k,
            k_scale,
            weights[rows].to(dtype),
            torch.zeros_like(ke),
            ke,
            q_scale=None if q_scale is None else q_scale[rows],
            max_seqlen_k=max_model_len,
        )
    return (scores,)


def ends(length: int, queries: int, device: torch.device) -> Tensor:
    """How many keys each of the last ``queries`` tokens of a context of ``length`` may see; int64 [queries]."""
    return (length - queries + 1 + torch.arange(queries, device=device)).clamp(min=0)


def keys_of(k_cache: Tensor, pages: Tensor, length: int, dim: int) -> tuple[Tensor, Tensor]:
    """The first ``length`` keys of a request, e4m3 [length, e] and fp32 [length], from the pages of its table row."""
    require_integers(pages=pages)
    page = index_page_size(k_cache, dim)
    used = pages[: -(-max(0, length) // page)].long()
    if length > len(used) * page:
        raise ValueError(f"block_table: expected {-(-length // page)} pages for {length} keys, got {len(used)}")
    if bool(((used < 0) | (used >= k_cache.shape[0])).any()):
        raise ValueError(f"block_table: expected pages 0 to {k_cache.shape[0] - 1}, got {used.tolist()}")
    codes, scales = decode_index_pages(k_cache[used], e=dim)
    return codes.reshape(-1, dim)[:length].view(torch.float8_e4m3fn), scales.flatten()[:length]
