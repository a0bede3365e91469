"""The tokens of a case: which request each packed token belongs to, and where in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..case import Case
from ..errors import BadInput

IDS = "ids-"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Packed tokens of all requests; every field int64 [m]."""

    request: Tensor
    """Index of the request in the batch."""
    name: Tensor
    """Logical number of the request: what its random values are keyed by."""
    position: Tensor
    """Index of the token in its request."""
    length: Tensor
    """Keys of its request."""
    queries: Tensor
    """Queries of its request."""

    def __getitem__(self, part: slice | Tensor) -> Tokens:
        return Tokens(self.request[part], self.name[part], self.position[part], self.length[part], self.queries[part])

    @property
    def number(self) -> Tensor:
        """One logical number a token, whatever else is in the batch; int64 [m]."""
        return (self.name << 32) + self.position

    def visible(self, causal: bool = True) -> Tensor:
        """For query tokens: how many keys each may see, bottom-right aligned causal; int64 [m]."""
        if not causal:
            return self.length
        return (self.position + self.length - self.queries + 1).clamp(min=0).minimum(self.length)


@dataclass(frozen=True, slots=True)
class Batch:
    """Query and key tokens of a case on one device."""

    q: Tokens
    k: Tokens
    cu_q: Tensor
    """int64 prefix sums [b+1]."""
    cu_k: Tensor


def names_of(case: Case) -> tuple[int, ...]:
    """The logical number of every request: 0, 1, … or as the option ``ids-2.5`` says.

    The option keeps the values of requests 2 and 5 of a larger case when the others are cut away.
    """
    for option in case.options:
        if option.startswith(IDS):
            parts = option.removeprefix(IDS).split(".")
            if len(parts) != len(case.q_lens) or not all(part.isdecimal() for part in parts):
                raise BadInput(
                    f"option {option!r}: expected {len(case.q_lens)} numbers joined by '.', one a request of the case"
                )
            return tuple(int(part) for part in parts)
    return tuple(range(len(case.q_lens)))


def batch_of(case: Case, device: torch.device) -> Batch:
    """The tokens of ``case`` on ``device``."""
    q_lens, k_lens, names = (torch.tensor(x, device=device) for x in (case.q_lens, case.k_lens, names_of(case)))

    def packed(lens: Tensor) -> tuple[Tokens, Tensor]:
        ends = torch.cumsum(lens, 0)
        request = torch.repeat_interleave(torch.arange(len(lens), device=device), lens)
        position = torch.arange(len(request), device=device) - (ends - lens)[request]
        tokens = Tokens(request, names[request], position, k_lens[request], q_lens[request])
        return tokens, torch.nn.functional.pad(ends, (1, 0))

    q, cu_q = packed(q_lens)
    k, cu_k = packed(k_lens)
    return Batch(q, k, cu_q, cu_k)
