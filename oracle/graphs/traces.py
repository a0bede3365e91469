"""Traces of replays: the host's events are those of the capture, the tensors in them those of now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ...reference.layer import (
    BufferRead,
    BufferWrite,
    CacheRead,
    CacheWrite,
    Event,
    OperatorCall,
    Range,
    Routed,
    SkipDecided,
    Trace,
)


def refreshed(trace: Trace, step: int, tokens: int) -> Trace:
    """The trace with its tensors as they are now, on the host, of the first ``tokens`` rows only."""
    events = [event for event in (_cut(event, tokens) for event in trace.events) if event is not None]
    return replace(trace, step=step, clock=None, events=events)


def _cut(event: Event, tokens: int) -> Event | None:
    if isinstance(event, CacheWrite):
        return replace(event, slots=_now(event.slots[:tokens]))
    if isinstance(event, OperatorCall | BufferWrite | BufferRead | CacheRead):
        span = _clip(event.tokens, tokens)
        if span[0] >= span[1]:
            return None
        if isinstance(event, OperatorCall | BufferWrite):
            return replace(event, tokens=span)
        count = span[1] - span[0]
        whole = isinstance(event, CacheRead) and event.slots.dim() == 1
        names = ("slots", "requests", "positions")
        if isinstance(event, BufferRead):
            names = ("indices", "steps", "layers", "stamps", "requests")  # type: ignore[assignment]
        now: dict[str, Any] = {
            name: _now(value if whole else value[:count]) for name, value in ((n, getattr(event, n)) for n in names)
        }
        return replace(event, tokens=span, **now)
    return event


def _clip(span: Range, tokens: int) -> Range:
    return span[0], min(span[1], tokens)


def _now(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().cpu()


def signature(trace: Trace) -> list[str]:
    """What the host decided and ran, in order."""
    words = []
    for event in trace.events:
        if isinstance(event, SkipDecided):
            words.append("indexer skipped" if event.decision.value else "indexer scored")
        elif isinstance(event, Routed):
            words.append(f"route {event.decision.value}")
        elif isinstance(event, OperatorCall):
            words.append(f"{event.operator} of tokens {event.tokens[0]} to {event.tokens[1] - 1}")
    return words
