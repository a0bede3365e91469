"""Masked multi-head attention: dense attention in which every query sees the keys whose bit is set.

    out[s,h] = sum_t softmax_t(scale * q[s,h] . k[t,h]) v[t,h]     t over the keys that mask AND causality allow

Bit j & 31 of word j >> 5 in ``mask[request, i]`` allows key j of the request for its query i. Bits at or beyond the
keys of the request, and rows at or beyond its queries, may hold anything.

Source: vLLM 0.33.0, masked MHA of sparse MLA prefill (``tests/v1/attention/test_sparse_mla_mask.py`` for the bits).

Shapes:
    q: [s, h, d]    k: [t, h, d]    v: [t, h, v]    cu_q, cu_k: int [b+1]    out: [s, h, v]    lse: [s, h]
    mask: int32 [b, >= longest request in queries, >= longest in keys / 32]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .arguments import compute_dtype, request_slices
from .chunks import Chunk
from .dense_mha import dense_chunks
from .softmax import attend_all


def masked_mha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    scale: float,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention of every request over the keys its mask allows; out and lse (natural log) in the compute dtype.

    ``scale`` multiplies q.k. Raises ValueError for shapes or prefix sums that do not fit.
    """
    dtype = compute_dtype(q, k, v)
    out = torch.zeros(*q.shape[:2], v.shape[-1], dtype=dtype, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=dtype, device=q.device)
    return attend_all(masked_chunks(q, k, v, mask, cu_q, cu_k, causal=causal), scale, out, lse)


def masked_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    *,
    causal: bool = True,
    limit: int | None = None,
    compute: torch.dtype | None = None,
) -> Iterator[Chunk]:
    """The chunks of dense attention, each with the bits of its queries; ``limit`` and ``compute`` as there."""
    queries_of, keys_of = request_slices("cu_q", cu_q, q.shape[0]), request_slices("cu_k", cu_k, k.shape[0])
    most_queries = max((rows.stop - rows.start for rows in queries_of), default=0)
    most_words = max((rows.stop - rows.start + 31 for rows in keys_of), default=0) // 32
    fits = mask.dim() == 3 and mask.shape[0] == len(queries_of)
    if not fits or mask.shape[1] < most_queries or mask.shape[2] < most_words or mask.dtype != torch.int32:
        raise ValueError(
            f"mask: expected int32 [{len(queries_of)}, >= {most_queries}, >= {most_words}], "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    request = 0
    for chunk in dense_chunks(q, k, v, cu_q, cu_k, causal=causal, limit=limit, compute=compute):
        while chunk.rows.start >= queries_of[request].stop:
            request += 1
        first = queries_of[request].start
        words = mask[request, chunk.rows.start - first : chunk.rows.stop - first]
        yield replace(chunk, allowed=chunk.allowed & unpack_bits(words, chunk.keys.shape[1]))


def unpack_bits(words: Tensor, count: int) -> Tensor:
    """The first ``count`` bits [..., count] as bool of int32 words [..., w], least significant bit first."""
    words = words[..., : (count + 31) // 32]
    bits = (words[..., None] >> torch.arange(32, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(-2)[..., :count].bool()
