"""Sparse multi-query attention: every query token attends to the cache rows that it selected.

    out[s,h] = sum_k softmax_k(scale * q[s,h] . kv[indices[s,k]]) kv[indices[s,k], :c]
    with a sink: out * exp(lse) / (exp(lse) + exp(sink))           lse stays as it is

The absorbed form of MLA: one latent row serves all heads, its first c = value_dim columns are the values. An index is
ignored if it is < 0 or >= n, wherever it stands, or if its slot is at or beyond ``lengths``; one that stands twice
counts twice. Queries are multiplied by ``q_scale``; rows of a quantised cache are what their bytes say, see
``layouts``, and those of ``fp8_e4m3`` are multiplied by ``k_scale``, keys and values alike.

Source: DeepSeek-V3.2 (2025), sparse attention over the selected tokens; FlashMLA at 9241ae3, sparse prefill
(``topk_length``, ``attn_sink``); vLLM 0.33.0 ``mla_attention.py`` for the absorbed form.

Shapes:
    q: [s, h, c+r]    kv: [n, width] or [p, page, width], width = c+r but for fp8_ds_mla
    indices: int [s, k]    lengths: int [s]    sink: [h]
    out: [s, h, c]    lse: [s, h]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype, require_integers
from .cache_rows import CacheRows
from .chunks import Chunk, chunk_elements, cut
from .layouts import require_scale
from .softmax import attend_all


def sparse_mqa(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: Tensor | None = None,
    sink: Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Attention over selected cache rows; out and lse (natural log, without the sink) in the compute dtype.

    ``scale`` multiplies q.k (that of the unabsorbed head dim). Raises ValueError for shapes that do not fit, a cache
    that is not of its format, and scales that are none.
    """
    dtype = compute_dtype(q, kv)
    out = torch.zeros(*q.shape[:2], value_dim, dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=dtype, device=q.device)
    chunks = sparse_chunks(
        q,
        kv,
        indices,
        value_dim=value_dim,
        lengths=lengths,
        cache_format=cache_format,
        q_scale=q_scale,
        k_scale=k_scale,
    )
    attend_all(chunks, scale, out, lse)
    if sink is not None:
        bind_sizes(("q", q, "s h d"), ("sink", sink, "h"))
        out *= sink_share(lse, sink)[..., None]
    return out, lse


def sparse_chunks(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    value_dim: int,
    lengths: Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    limit: int | None = None,
    compute: torch.dtype | None = None,
) -> Iterator[Chunk]:
    """The call in tokens-first chunks of at most ``limit`` scores and as many gathered key elements.

    ``compute`` replaces the compute dtype that follows from the inputs.
    """
    sizes = bind_sizes(("q", q, "s h d"), ("indices", indices, "s k"))
    require_integers(indices=indices)
    require_scale("q_scale", q_scale)
    require_scale("k_scale", k_scale)
    if not 0 <= value_dim <= sizes["d"]:
        raise ValueError(f"value_dim: expected 0 to {sizes['d']}, the columns of kv, got {value_dim}")
    if lengths is not None:
        bind_sizes(("q", q, "s h d"), ("lengths", lengths, "s"))
        require_integers(lengths=lengths)
    dtype = compute or compute_dtype(q, kv)
    cache = CacheRows(kv, value_dim, sizes["d"] - value_dim, cache_format, k_scale)
    slots, most = torch.arange(sizes["k"], device=q.device), limit or chunk_elements(q.device)
    for rows in cut(slice(0, sizes["s"]), sizes["k"] * max(sizes["d"], sizes["h"]), most):
        chosen = indices[rows].long()
        used = (chosen >= 0) & (chosen < len(cache))
        if lengths is not None:
            used &= slots < lengths[rows, None]
        keys = cache.decoded(chosen.flatten(), used.flatten(), dtype).view(*chosen.shape, sizes["d"])  # [s, k, c+r]
        yield Chunk(
            rows=rows,
            queries=q[rows].to(dtype) * q_scale,
            keys=keys,
            values=keys[..., :value_dim],
            allowed=used[:, None, :],
            heads_first=False,
        )


def sink_share(lse: Tensor, sink: Tensor) -> Tensor:
    """exp(lse) / (exp(lse) + exp(sink)) [s, h]: what the sink leaves of the output; 0 for a query with no key."""
    share = torch.sigmoid(lse - sink.to(lse.dtype))
    return torch.where(lse == -torch.inf, 0.0, share)
