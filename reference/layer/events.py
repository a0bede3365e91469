"""What a layer can do in a step, one record a kind of event.

Token ranges are half-open pairs of rows in the batch's token order (decodes first).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..routing import Decision, Route

Range = tuple[int, int]
#: Who wrote a row of the top-k buffer last: nobody, a reset to -1, or a selection.
Stamp = Literal["never", "reset", "topk"]
STAMPS: tuple[Stamp, ...] = ("never", "reset", "topk")


@dataclass(frozen=True, slots=True)
class Reached:
    """A stage began: index, ready, route or attend."""

    stage: str


@dataclass(frozen=True, slots=True)
class SkipDecided:
    """The indexer decided whether to skip scoring."""

    decision: Decision[bool]


@dataclass(frozen=True, slots=True)
class GuardAsked:
    """The workspace guard of masked MHA answered."""

    decision: Decision[bool]


@dataclass(frozen=True, slots=True)
class Routed:
    """The layer chose the branch of its prefill tokens."""

    decision: Decision[Route]


@dataclass(frozen=True, slots=True)
class QueryForm:
    """What a query handed to an operator is: ``rotations`` of its RoPE dims (one is right), absorbed or not."""

    width: int
    absorbed: bool
    rotations: int
    packed: bool = False
    """Quantised to e4m3 together with its RoPE dims."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator ran for the query tokens ``tokens``; ``query`` is None for operators without one."""

    operator: str
    tokens: Range
    query: QueryForm | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CacheWrite:
    """New tokens were written to a cache."""

    cache: Literal["latent", "index"]
    slots: Tensor
    """int64 [s]: row of each token, -1 for padding."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheRead:
    """Rows of a cache were read for the query tokens ``tokens``; what was found there, by provenance."""

    cache: Literal["latent", "index"]
    reader: str
    tokens: Range
    slots: Tensor
    """int [x] for gathered keys, [s, k] for selected ones; negative: nothing."""
    requests: Tensor
    """int32 like ``slots``: id of the request that wrote the row, -1: nobody."""
    positions: Tensor
    """int32 like ``slots``: position of the token that was written."""


@dataclass(frozen=True, slots=True)
class BufferWrite:
    """Rows of the top-k buffer were reset to -1 or given a selection."""

    tokens: Range
    stamp: Stamp


@dataclass(frozen=True, slots=True, eq=False)
class BufferRead:
    """Rows of the top-k buffer were read, with their provenance as it was then."""

    reader: str
    tokens: Range
    indices: Tensor
    """int32 [s, k], request-local key positions."""
    steps: Tensor
    """int64 [s]: step that wrote the row."""
    layers: Tensor
    """int64 [s]: position of the layer that wrote the row."""
    stamps: Tensor
    """int8 [s]: index into STAMPS."""
    requests: Tensor
    """int64 [s]: request that the row was written for; -1 where a reset wrote it."""


Event = Reached | SkipDecided | GuardAsked | Routed | OperatorCall | CacheWrite | CacheRead | BufferWrite | BufferRead
