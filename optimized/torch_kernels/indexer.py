"""Indexer scores as one einsum a chunk of queries, over packed keys and over the pages of a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ..pages import check_paged, check_scales, check_windows, page_size
from .precision import exact_fp32

#: Elements of the head-by-key products held at once, in fp32: 128 MiB.
_CHUNK_ELEMENTS = 1 << 25


@exact_fp32
def indexer_scores(
    q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor, *,
    q_scale: Tensor | None = None, max_seqlen_k: int | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """q [s,i,e], k [t,e], k_scale [t], weights and q_scale [s,i], ks, ke int32 [s] -> (scores fp32 [s,t],).

    -inf outside [ks,ke); with ``max_seqlen_k`` [s,max_seqlen_k] from ks on. bf16 and fp8 inputs are widened to fp32,
    which is exact; all sums are fp32.
    """
    if q_scale is not None:
        check_scales("q_scale", q_scale)
        weights = weights * q_scale
    if max_seqlen_k is not None:
        check_windows(ks, ke, k.shape[0], max_seqlen_k)
    queries, heads, _ = q.shape
    columns = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    scores = torch.empty(queries, columns, dtype=torch.float32, device=q.device)
    keys = k.float()
    first = torch.zeros_like(ks) if max_seqlen_k is None else ks.clamp(min=0)
    step = max(1, _CHUNK_ELEMENTS // max(1, heads * k.shape[0]))
    for start in range(0, queries, step):
        rows = slice(start, start + step)
        products = torch.einsum("sie,te->sit", q[rows].float(), keys).relu_()
        found = torch.einsum("sit,si->st", products, weights[rows].float()) * k_scale
        found = torch.nn.functional.pad(found, (0, 1), value=float("-inf"))  # the last column stands for no key
        key = first[rows, None].long() + torch.arange(columns, device=q.device)
        inside = (key >= ks[rows, None]) & (key < ke[rows, None]) & (key < k.shape[0])
        scores[rows] = found.gather(1, torch.where(inside, key, k.shape[0]))
    return (scores,)


@exact_fp32
def paged_indexer_scores(
    q: Tensor, k_cache: Tensor, weights: Tensor, context_lens: Tensor, block_table: Tensor, *,
    max_model_len: int, q_scale: Tensor | None = None,
) -> tuple[Tensor]:  # fmt: skip
    """q e4m3 [b,m,i,e], k_cache uint8 [p,page*(e+4)], weights fp32 [b*m,i], context_lens [b], block_table [b,w] int32.

    Returns (scores fp32 [b*m,max_model_len],), -inf from each query's end on. The pages of all requests are gathered
    side by side, and keys that no query sees are set to zero before they are multiplied.
    """
    check_paged(q, k_cache, weights, context_lens, block_table, max_model_len, q_scale)
    requests, m, heads, dim = q.shape
    page = page_size(k_cache, dim)
    width = min(block_table.shape[1], -(-max_model_len // page))
    scores = q.new_full((requests * m, max_model_len), float("-inf"), dtype=torch.float32)
    if scores.numel() == 0 or width == 0:
        return (scores,)
    if q_scale is not None:
        weights = weights * q_scale
    position = torch.arange(width * page, device=q.device)
    end = context_lens[:, None].long() - m + 1 + torch.arange(m, device=q.device)  # [b, m]
    step = max(1, _CHUNK_ELEMENTS // (m * heads * width * page))
    for start in range(0, requests, step):
        rows = slice(start, start + step)
        held = position < context_lens[rows, None]  # [b, t]
        keys, factor = _gathered(k_cache, block_table[rows, :width], held, dim)
        products = torch.einsum("bmie,bte->bmit", q[rows].float(), keys).relu_()
        found = torch.einsum("bmit,bmi->bmt", products, weights.view(requests, m, heads)[rows]) * factor[:, None]
        found.masked_fill_(position >= end[rows, :, None], float("-inf"))
        target = scores.view(requests, m, -1)[rows]
        target[..., : found.shape[-1]] = found[..., : target.shape[-1]]
    return (scores,)


def _gathered(k_cache: Tensor, block_table: Tensor, held: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Keys fp32 [b, t, e] and scales [b, t] of the pages of a table, zero where ``held`` [b, t] is not set."""
    page = page_size(k_cache, dim)
    pages = torch.where(held[:, ::page], block_table, 0).long()
    codes, scales = torch.split(k_cache[pages], [page * dim, page * 4], -1)  # [b, w, ...]
    keys = codes.reshape(*held.shape, dim).view(torch.float8_e4m3fn).float()
    factor = scales.reshape(*held.shape, 4).view(torch.float32)[..., 0]
    return keys.masked_fill_(~held[..., None], 0.0), factor.masked_fill(~held, 0.0)
