"""What the scheduler runs in one step: the truth that metadata is held against."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.batch.requests) or len(set(self.ids)) != len(self.ids):
            raise ValueError(f"step field 'ids': expected {len(self.batch.requests)} distinct ids, got {self.ids}")

    def arranged(self, rules: Rules, deployment: Deployment) -> StepBatch:
        """The same step with decodes first, as the main attention's threshold sees them."""
        batch, order = self.batch.arranged(decode_threshold(rules, deployment).value)
        return StepBatch(step=self.step, ids=tuple(self.ids[index] for index in order), batch=batch)

    def token_rows(self) -> tuple[Tensor, Tensor]:
        """Request number in the batch and position in the sequence of every token, int64 [s]."""
        requests = self.batch.requests
        counts = torch.tensor([request.query_len for request in requests])
        number = torch.repeat_interleave(torch.arange(len(requests)), counts)
        spans = [torch.arange(request.context_len, request.seq_len) for request in requests]
        return number, torch.cat(spans)
