"""Packing selections into a bit mask for masked attention.

Bit j & 31 of word j >> 5 of ``mask[b, i]`` is set if query i of request b selected position starts[b] + j, for
j < lengths[b]. Duplicates set one bit; negative entries and positions outside the span set none; all other bits are 0.

    starts 0, lengths = keys of the request     a mask a request
    a chunk's starts and lengths                a mask a chunk of context, or of the new tokens
    ``key_starts``                              one mask for all chunks; word ``words - 1`` of row 0 of each request
                                                holds key_starts[b], where its keys begin, and no bits

Source: vLLM 0.33.0 ``sparse_mla_attention.py`` and ``tests/v1/attention/test_sparse_mla_mask.py``.

Shapes:
    indices: int32 [s, k]    cu_q: int [b+1]    starts, lengths, key_starts: int32 [b]    mask: int32 [b, rows, words]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, request_slices, require_integers

WORD_BITS = 32


def build_mask(
    indices: Tensor,
    cu_q: Tensor,
    starts: Tensor,
    lengths: Tensor,
    *,
    rows: int,
    words: int,
    key_starts: Tensor | None = None,
) -> tuple[Tensor]:
    """The mask. ``rows``: at least the most queries of a request; ``words``: enough for the longest span.

    Raises ValueError for shapes that do not fit and for a mask that is too small.
    """
    sizes = bind_sizes(("indices", indices, "s k"), ("starts", starts, "b"), ("lengths", lengths, "b"))
    require_integers(indices=indices, starts=starts, lengths=lengths)
    spans = request_slices("cu_q", cu_q, sizes["s"])
    most = max((span.stop - span.start for span in spans), default=0)
    longest = int(lengths.max()) if len(lengths) else 0
    needed = max(0, longest + WORD_BITS - 1) // WORD_BITS + (key_starts is not None)
    if len(spans) != sizes["b"] or rows < most or words < needed:
        raise ValueError(
            f"mask: expected {sizes['b']} requests with at least {most} rows and {needed} words, "
            f"got {len(spans)} requests, {rows} rows, {words} words"
        )
    mask = torch.zeros(sizes["b"], rows, words, dtype=torch.int32, device=indices.device)
    for request, span in enumerate(spans):
        start, length = int(starts[request]), int(lengths[request])
        local = indices[span].long() - start
        inside = (indices[span] >= 0) & (local >= 0) & (local < length)
        bits = torch.zeros(len(local), words * WORD_BITS + 1, dtype=torch.bool, device=indices.device)
        bits.scatter_(1, torch.where(inside, local, words * WORD_BITS), True)  # the last column takes the others
        mask[request, : len(local)] = pack_bits(bits[:, :-1])
        if key_starts is not None:
            mask[request, 0, words - 1] = key_starts[request]
    return (mask,)


def pack_bits(bits: Tensor) -> Tensor:
    """int32 words [x, w] of bool [x, 32 w], least significant bit first."""
    weights = 1 << torch.arange(WORD_BITS, dtype=torch.int64, device=bits.device)
    packed = (bits.reshape(len(bits), bits.shape[1] // WORD_BITS, WORD_BITS) * weights).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
