"""What the scheduler hands to a step: requests with new tokens and cached context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a step. ``query_len`` new tokens follow ``context_len`` tokens that are in the cache."""

    query_len: int
    context_len: int = 0
    prefilling: bool | None = None
    """Whether prompt tokens are still to come or being computed; None: so unless this is one token after context."""

    def __post_init__(self) -> None:
        if self.context_len < 0:
            raise ValueError(f"request field 'context_len': expected 0 or more cached tokens, got {self.context_len}")
        if self.query_len < 1:
            raise ValueError(f"request field 'query_len': expected at least one query token, got {self.query_len}")

    @classmethod
    def of_sequence(cls, query_len: int, seq_len: int, prefilling: bool | None = None) -> Request:
        """The request whose whole length is ``seq_len``. Raises ValueError where the queries outnumber it."""
        if query_len > seq_len:
            raise ValueError(
                f"request field 'query_len': expected at most the sequence length {seq_len}, got {query_len}; "
                "seq_len counts context and new tokens together"
            )
        return cls(query_len, seq_len - query_len, prefilling)

    @property
    def seq_len(self) -> int:
        return self.query_len + self.context_len

    @property
    def is_prefilling(self) -> bool:
        if self.prefilling is None:
            return self.query_len > 1 or self.context_len == 0
        return self.prefilling


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of one step, in token order."""

    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("batch field 'requests': expected at least one request with a query, got none")

    @classmethod
    def of(cls, requests: Iterable[tuple[int, int]]) -> Batch:
        """From pairs (query_len, context_len)."""
        return cls(tuple(Request(query, context) for query, context in requests))

    @property
    def num_tokens(self) -> int:
        return sum(request.query_len for request in self.requests)

    def arranged(self, threshold: int) -> tuple[Batch, tuple[int, ...]]:
        """The batch in the order decode, short extend, long extend, prefill, and where each request came from."""

        def region(index: int) -> int:
            request = self.requests[index]
            if request.query_len <= threshold:
                return int(request.is_prefilling)
            return 2 if request.context_len else 3

        order = tuple(sorted(range(len(self.requests)), key=region))
        return Batch(tuple(self.requests[index] for index in order)), order
