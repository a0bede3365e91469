"""The top-k buffer that all layers of a model share, and who wrote each of its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from .events import STAMPS, BufferRead, BufferWrite, Range, Stamp
from .trace import Trace


class TopkBuffer:
    """int32 [rows, k] of request-local key positions, one row a token of the batch.

    Engines allocate it uninitialised; ``initial`` stands for what happens to lie there. Every write stamps its rows
    with step, layer and request, so that a stale row is known as such whatever its values look like.
    """

    def __init__(self, rows: int, topk: int, *, initial: int = 0, device: torch.device | str = "cpu") -> None:
        self.indices = torch.full((rows, topk), initial, dtype=torch.int32, device=device)
        self.steps = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.layers = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.requests = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self.stamps = torch.zeros(rows, dtype=torch.int8, device=device)

    def reset(self, tokens: Range, trace: Trace) -> None:
        """Fill rows with -1."""
        rows = self._rows(tokens)
        self.indices[rows] = -1
        self.requests[rows] = -1
        self._stamp(rows, trace, "reset")
        trace.events.append(BufferWrite(tokens, "reset"))

    def write(self, tokens: Range, selected: Tensor, requests: Tensor, trace: Trace) -> None:
        """Store selections int32 [s, k] made for ``requests`` int64 [s]."""
        rows = self._rows(tokens)
        self.indices[rows] = selected
        self.requests[rows] = requests
        self._stamp(rows, trace, "topk")
        trace.events.append(BufferWrite(tokens, "topk"))

    def read(self, tokens: Range, reader: str, trace: Trace) -> Tensor:
        """Selections int32 [s, k] of the tokens, whoever wrote them."""
        rows = self._rows(tokens)
        indices = self.indices[rows].clone()
        trace.events.append(
            BufferRead(
                reader,
                tokens,
                indices,
                self.steps[rows].clone(),
                self.layers[rows].clone(),
                self.stamps[rows].clone(),
                self.requests[rows].clone(),
            )
        )
        return indices

    def _rows(self, tokens: Range) -> slice:
        if tokens[1] > len(self.indices):
            raise ValueError(f"top-k buffer: expected at most {len(self.indices)} tokens, got {tokens[1]}")
        return slice(*tokens)

    def _stamp(self, rows: slice, trace: Trace, stamp: Stamp) -> None:
        self.steps[rows] = trace.step if trace.clock is None else trace.clock
        self.layers[rows] = trace.position
        self.stamps[rows] = STAMPS.index(stamp)
