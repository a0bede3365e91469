"""What a replay saw, and whether that is what it was to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...reference.layer import BufferRead, OperatorCall, SkipDecided
from ..layer.rig import StepResult
from ..layer.rules import ATTENTION

Detector = Literal["layer-contract", "differential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One judged step of one variant."""

    variant: str
    name: str
    """The prompt's length, or what the companion is called."""
    companion: bool
    prompt_length: int
    """Of the longest prompt in the step."""
    classification: str
    route_decided: str
    route_executed: str
    indexer_skipped: bool
    minus_one_share: float | None
    """Of the min(length, top-k) selections that every row should hold: how many read as -1. None: none were read."""
    tokens: tuple[int, ...]
    """What was said after the longest prompt."""
    expected_tokens: tuple[int, ...]
    status: Literal["PASS", "FAIL"]
    """PASS: tokens and layer outputs are right."""
    detected_by: tuple[Detector, ...]
    violations: tuple[str, ...]
    worst: float
    """Largest error of a layer's output, relative to its budget."""
    met: bool
    """Whether status and detection are what the incident lays down."""


def classification(result: StepResult) -> str:
    """decode, prefill, or both."""
    metadata = result.metadata
    both = (("decode", metadata.num_decodes), ("prefill", metadata.num_prefills))
    return "+".join(name for name, count in both if count)


def executed(result: StepResult) -> str:
    """The attention operators of the step's first layer, in the order of its tokens."""
    calls = [event for event in result.traces[0].events if isinstance(event, OperatorCall)]
    return "+".join(dict.fromkeys(call.operator for call in calls if call.operator in ATTENTION))


def skipped(result: StepResult) -> bool:
    """Whether the step's indexers skipped scoring."""
    return any(
        event.decision.value for trace in result.traces for event in trace.events if isinstance(event, SkipDecided)
    )


def minus_one_share(result: StepResult) -> float | None:
    """See :attr:`Seen.minus_one_share`; over all layers of the step."""
    _, positions = result.step.token_rows()
    wanted = missing = 0
    for trace in result.traces:
        for read in trace.events:
            if isinstance(read, BufferRead):
                topk = read.indices.shape[1]
                due = (positions[slice(*read.tokens)] + 1).clamp_max(topk)
                held = (read.indices >= 0).sum(1).cpu()
                wanted += int(due.sum())
                missing += int((due - held).clamp_min(0).sum())
    return missing / wanted if wanted else None
