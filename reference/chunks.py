"""Chunks: attention cut into pieces of bounded size, so that no production case exists whole in float64.

A chunk is a batch of x small attention problems, each m queries against t keys:

    heads first   x = heads, m = query tokens: dense and masked attention, whose queries share the request's keys
    tokens first  x = query tokens, m = heads: sparse attention, whose heads share the keys that a token selected

The chunks of a call cover every query token exactly once. A reference maps ``softmax.attend`` over them; an error
budget streams through the very same pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Most scores of a chunk, and most key elements gathered for it (128 MiB each in float64); one query always fits.
CHUNK_ELEMENTS = 2**24
#: The same on a CPU: 8 MiB lie in its cache, and come from memory that the allocator has; what is larger than 32 MiB is
#: mapped anew by glibc and zeroed page by page by the kernel, which took more time than the sums.
CPU_CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """x attention problems over the query tokens ``rows``, in the dtype that the reference computes in.

    Shapes:
        rows: slice of the packed query tokens
        queries: [x, m, d]
        keys: [x, t, d]
        values: [x, t, v]
        allowed: bool, broadcastable to [x, m, t]; which query may see which key

    Keys that a query may not see hold anything (heads first) or zeros (tokens first, where a slot is unused).
    """

    rows: slice
    queries: Tensor
    keys: Tensor
    values: Tensor
    allowed: Tensor
    heads_first: bool

    def place(self, tensor: Tensor) -> Tensor:
        """A result [x, m, ...] of this chunk as [tokens, h, ...], ready for the packed rows ``rows``."""
        return tensor.transpose(0, 1) if self.heads_first else tensor


def chunk_elements(device: torch.device) -> int:
    """Most elements of a chunk on a device."""
    return CPU_CHUNK_ELEMENTS if device.type == "cpu" else CHUNK_ELEMENTS


def cut(rows: slice, per_query: int, limit: int) -> Iterator[slice]:
    """``rows`` in order, in pieces of at most ``limit`` elements at ``per_query`` elements a query; at least one."""
    step = max(1, limit // max(1, per_query))
    for start in range(rows.start, rows.stop, step):
        yield slice(start, min(start + step, rows.stop))
