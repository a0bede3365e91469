"""What an engine is: jobs go in, verdicts come out, and what was lost on the way is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..verdict import Verdict
from .worker import Pair


@dataclass(frozen=True, slots=True)
class Lost:
    """A job without a verdict: the worker that had it is gone."""

    reason: str
    seconds: float = 0.0
    final: bool = False
    """The job's own doing for certain (it ran out of time or memory): another try would cost the same again."""


Answer = Verdict | Lost


class Engine(Protocol):
    """Runs judgements somewhere.

    It takes any number of jobs and keeps its workers busy; how many it hands out at once is its own affair. Every job
    is answered once. ``get`` raises what the check itself raised, as opposed to what the checked kernel raised.
    """

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``: what the judgements run on."""

    @property
    def slots(self) -> int:
        """Workers, or 1 where this process does the work."""

    @property
    def depth(self) -> int:
        """Jobs under way that keep every worker busy; more of them wait."""

    @property
    def tries(self) -> int:
        """Workers that a job may lose before it is an ERROR."""

    def put(self, job: int, pair: Pair) -> None:
        """Take a job; ``job`` is any number that is not under way."""

    def get(self, patience: float | None = None) -> list[tuple[int, Answer]]:
        """Answers as they are there: at least one, unless ``patience`` seconds passed or no job is under way."""
