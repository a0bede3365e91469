"""Which pages a request holds, and how positions become rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Pages:
    """A pool of ``blocks`` pages of ``block_size`` rows, handed out lowest first."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(blocks))
        self.held: dict[int, list[int]] = {}

    def reserve(self, request: int, tokens: int) -> None:
        """Make sure that a request holds pages for ``tokens`` tokens. Raises ValueError if the pool is exhausted."""
        held = self.held.setdefault(request, [])
        missing = -(-tokens // self.block_size) - len(held)
        if missing > len(self.free):
            raise ValueError(f"pages: expected {missing} free pages for request {request}, got {len(self.free)}")
        held += [self.free.pop(0) for _ in range(missing)]

    def share(self, request: int, donor: int, tokens: int) -> None:
        """Let a new request hold the pages of the donor's first tokens as well: a hit of the prefix cache.

        Raises ValueError for a part of a page, which the two would both write to, and for tokens without a page.
        """
        pages = self.held[donor][: tokens // self.block_size]
        if tokens != len(pages) * self.block_size:
            raise ValueError(f"pages: expected whole pages that request {donor} holds, got {tokens} tokens")
        self.held[request] = pages

    def release(self, request: int) -> None:
        """Give back the pages of a request that ended or was preempted; their contents stay as they are."""
        mine = self.held.pop(request)
        shared = {page for pages in self.held.values() for page in pages}
        self.free = sorted(self.free + [page for page in mine if page not in shared])

    def table(self, requests: Sequence[int]) -> Tensor:
        """Block table int32 [b, most pages], -1 where a request holds fewer."""
        most = max(len(self.held[request]) for request in requests)
        rows = [self.held[request] + [-1] * (most - len(self.held[request])) for request in requests]
        return torch.tensor(rows, dtype=torch.int32)


def to_slots(block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Rows int64 of request-local positions; -1 where the position is negative or its page is not held.

    ``requests`` counts rows of ``block_table`` [b, m] and broadcasts against ``positions``: [s] and [s], or [s, 1] and
    [s, k]. Source: vLLM 0.33.0 ``vllm/v1/attention/backends/mla/sparse_utils.py``.
    """
    width = block_table.shape[1] * block_size
    offsets = torch.arange(block_size, device=block_table.device)
    table = block_table.long()[..., None]
    rows = torch.where(table >= 0, table * block_size + offsets, -1).view(-1)  # of every position that is held
    reached = (positions >= 0) & (positions < width)
    if not len(rows):
        return torch.full(reached.shape, -1, device=positions.device)
    at = torch.where(reached, positions, 0) + requests.long() * width
    return torch.where(reached, rows.index_select(0, at.flatten()).view(at.shape), -1)
