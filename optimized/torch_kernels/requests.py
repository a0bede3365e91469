"""Requests of a packed batch: where each begins and ends, and what a causal query may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Request:
    """Rows of one request in the packed queries and keys."""

    index: int
    queries: slice
    keys: slice

    @property
    def query_count(self) -> int:
        return int(self.queries.stop - self.queries.start)

    @property
    def key_count(self) -> int:
        return int(self.keys.stop - self.keys.start)


def requests(cu_q: Tensor, cu_k: Tensor) -> Iterator[Request]:
    """The requests that have queries. ``cu_q``, ``cu_k``: int32 prefix sums [b+1]; read back to the host."""
    starts_q, starts_k = cu_q.tolist(), cu_k.tolist()
    for index in range(len(starts_q) - 1):
        queries = slice(starts_q[index], starts_q[index + 1])
        if queries.stop > queries.start:
            yield Request(index, queries, slice(starts_k[index], starts_k[index + 1]))


def causal_mask(query_count: int, key_count: int, device: torch.device) -> Tensor:
    """Bool [query_count, key_count]: query i sees keys j <= i + key_count - query_count (bottom-right aligned)."""
    full = torch.ones(query_count, key_count, dtype=torch.bool, device=device)
    return full.tril(key_count - query_count)


def unpack_mask(words: Tensor, request: Request, causal: bool) -> Tensor:
    """Bool [query_count, key_count] of one request, from int32 words [b, s_padded, words].

    Bit (j & 31) of word (j >> 5) is key j; bits and rows beyond the request are not read.
    """
    keys = torch.arange(request.key_count, device=words.device)
    rows = words[request.index, : request.query_count]
    seen = (rows[:, keys >> 5] >> (keys & 31).to(torch.int32)) & 1 != 0
    if causal:
        seen &= causal_mask(request.query_count, request.key_count, words.device)
    return seen
