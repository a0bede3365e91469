"""How cached context is cut into chunks that fit a workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextChunk:
    """Rows gathered at once: ``lengths[i]`` context rows from ``starts[i]`` of request ``first + i``."""

    first: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def continues(self) -> bool:
        """Whether the first request began in an earlier chunk."""
        return self.starts[0] > 0

    @property
    def rows(self) -> int:
        return sum(self.lengths)

    @property
    def requests(self) -> range:
        return range(self.first, self.first + len(self.lengths))


def plan_chunks(
    context_lens: Sequence[int],
    rows: int,
    block_size: int,
    *,
    cost: Callable[[int], int] = int,
) -> tuple[ContextChunk, ...]:
    """Pack contexts in request order into chunks of at most ``rows`` workspace rows.

    A request that does not fit what is left is split at a multiple of ``block_size`` and ends the chunk, so only the
    first request of a chunk continues an earlier one. The requests of a chunk are consecutive; one without context has
    no span and therefore ends a chunk. ``cost(n)``: workspace rows of the first n tokens of a context
    (:func:`dcp_rows`). Raises ValueError if not even one block fits.
    """
    _require_room(context_lens, rows, block_size, cost)
    chunks: list[ContextChunk] = []
    spans: list[tuple[int, int, int]] = []  # request, start, length of the open chunk

    def close() -> None:
        if spans:
            requests, starts, lengths = zip(*spans, strict=True)
            chunks.append(ContextChunk(requests[0], starts, lengths))
            spans.clear()

    for request, context in enumerate(context_lens):
        begin = 0
        if context == 0:
            close()
        while begin < context:
            used = sum(cost(start + length) - cost(start) for _, start, length in spans)
            take = _fitting(begin, context, rows - used, block_size, cost)
            if take:
                spans.append((request, begin, take))
                begin += take
            if begin < context:
                close()
    close()
    return tuple(chunks)


def _require_room(context_lens: Sequence[int], rows: int, block_size: int, cost: Callable[[int], int]) -> None:
    if block_size < 1 or min(context_lens, default=0) < 0:
        raise ValueError(
            f"context plan: expected a positive block size and no negative context, got {block_size}, {context_lens}"
        )
    if cost(block_size) > rows:
        raise ValueError(
            f"context plan: expected room for one block of {block_size} tokens ({cost(block_size)} rows), got {rows}"
        )


def _fitting(begin: int, context: int, room: int, block_size: int, cost: Callable[[int], int]) -> int:
    """Tokens from ``begin`` that fit ``room`` rows: all that remain, or a multiple of the block size below that."""
    if cost(context) - cost(begin) <= room:
        return context - begin
    low, high = 0, (context - begin - 1) // block_size
    while low < high:
        middle = (low + high + 1) // 2
        if cost(begin + middle * block_size) - cost(begin) <= room:
            low = middle
        else:
            high = middle - 1
    return low * block_size


def dcp_rows(tokens: int, dcp: int, interleave: int) -> int:
    """Workspace rows of the first ``tokens`` of a context under DCP: every rank's shard, padded to the longest."""
    return -(-tokens // (dcp * interleave)) * dcp * interleave


def longest_chunk(chunks: Sequence[ContextChunk]) -> int:
    """Most rows that one request has in one chunk; 0 without context."""
    return max((max(chunk.lengths) for chunk in chunks), default=0)
