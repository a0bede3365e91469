"""One line of a suite's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One batch of one operator, for any geometry."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    kind: str = "randn"
    options: tuple[str, ...] = ()
    topk: int = 0
    heads: int = 0
    dtype: str = "bf16"


def ragged(*pairs: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query and key lengths of requests given as pairs."""
    return tuple(q for q, _ in pairs), tuple(k for _, k in pairs)
