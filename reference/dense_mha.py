"""Dense multi-head attention over a ragged batch.

    out[s,h] = sum_t softmax_t(scale * q[s,h] . k[t,h]) v[t,h]     t over the keys of the request of s
    causal: query i of a request with S queries and T keys sees the keys j <= i + T - S

Source: the MHA form of MLA prefill, vLLM 0.33.0 ``vllm/model_executor/layers/attention/mla_attention.py``; bottom-right
alignment as in FlashAttention 2.1. Requests may have no query or no key, and fewer keys than queries.

Shapes:
    q: [s, h, d]    k: [t, h, d]    v: [t, h, v]    cu_q, cu_k: int [b+1]    out: [s, h, v]    lse: [s, h]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype, request_slices
from .chunks import Chunk, chunk_elements, cut
from .softmax import attend_all


def dense_mha(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, Tensor]:
    """Attention of every request over its own keys; out and lse (natural log) in the compute dtype.

    ``scale`` multiplies q.k. Raises ValueError for shapes or prefix sums that do not fit.
    """
    dtype = compute_dtype(q, k, v)
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=dtype, device=q.device)
    return attend_all(dense_chunks(q, k, v, cu_q, cu_k, causal=causal), scale, out, lse)


def dense_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    causal: bool = True,
    limit: int | None = None,
    compute: torch.dtype | None = None,
) -> Iterator[Chunk]:
    """The call in heads-first chunks of at most ``limit`` scores (None: what suits the device).

    Keys that no query of a chunk reaches are left out. The keys and values of one request are held once in the compute
    dtype, besides the chunk. ``compute`` replaces the compute dtype that follows from the inputs: float64 for the truth
    about low-precision inputs.
    """
    sizes = bind_sizes(("q", q, "s h d"), ("k", k, "t h d"), ("v", v, "t h v"))
    queries_of, keys_of = request_slices("cu_q", cu_q, sizes["s"]), request_slices("cu_k", cu_k, sizes["t"])
    if len(queries_of) != len(keys_of):
        raise ValueError(f"cu_k: expected [{len(queries_of) + 1}] as cu_q, got [{len(keys_of) + 1}]")
    dtype = compute or compute_dtype(q, k, v)
    for queries, keys in zip(queries_of, keys_of, strict=True):
        request_k = k[keys].to(dtype).transpose(0, 1)  # [h, t, d]
        request_v = v[keys].to(dtype).transpose(0, 1)  # [h, t, v]
        total = keys.stop - keys.start
        # Query i sees the keys j <= i + ahead; without causality the first query reaches the last key.
        ahead = total - (queries.stop - queries.start) if causal else total
        for rows in cut(queries, sizes["h"] * total, limit or chunk_elements(q.device)):
            reach = min(total, max(0, rows.stop - queries.start + ahead))
            i = torch.arange(rows.start - queries.start, rows.stop - queries.start, device=q.device)
            j = torch.arange(reach, device=q.device)
            yield Chunk(
                rows=rows,
                queries=q[rows].to(dtype).transpose(0, 1),
                keys=request_k[:, :reach],
                values=request_v[:, :reach],
                allowed=(j[None, :] <= i[:, None] + ahead)[None],  # [1, m, t]
                heads_first=True,
            )
