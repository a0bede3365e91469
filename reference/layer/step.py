"""What the scheduler runs in one step: the truth that metadata is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..routing import Batch, Deployment, Rules, decode_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The requests of one step and their ids."""

    step: int
    ids: tuple[int, ...]
    """Id of each request; it stays from step to step."""
    batch: Batch
    prefixes: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Of requests that began with a hit of the prefix cache: who wrote their first positions, as (id, up to)."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.batch.requests) or len(set(self.ids)) != len(self.ids):
            raise ValueError(f"step field 'ids': expected {len(self.batch.requests)} distinct ids, got {self.ids}")

    def arranged(self, rules: Rules, deployment: Deployment) -> StepBatch:
        """The same step with decodes first, as the main attention's threshold sees them."""
        batch, order = self.batch.arranged(decode_threshold(rules, deployment).value)
        ids = tuple(self.ids[index] for index in order)
        return StepBatch(step=self.step, ids=ids, batch=batch, prefixes=self.prefixes)

    def writers(self, requests: Tensor, positions: Tensor) -> Tensor:
        """Ids of the requests that wrote these positions of ``requests``, ids that broadcast against positions."""
        wrote = requests
        for number, prefix in self.prefixes.items():
            for writer, stop in reversed(prefix):
                wrote = torch.where((requests == number) & (positions < stop), writer, wrote)
        return wrote

    def token_rows(self) -> tuple[Tensor, Tensor]:
        """Request number in the batch and position in the sequence of every token, int64 [s]."""
        requests = self.batch.requests
        counts = torch.tensor([request.query_len for request in requests])
        number = torch.repeat_interleave(torch.arange(len(requests)), counts)
        spans = [torch.arange(request.context_len, request.seq_len) for request in requests]
        return number, torch.cat(spans)
