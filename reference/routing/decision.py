"""A decision that carries its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What was decided, and why: one sentence a rule that had a say, in the order they were asked."""

    value: T
    reasons: tuple[str, ...]

    def __bool__(self) -> NoReturn:
        # A record is always true, so `if decision:` would take the wrong branch in silence.
        raise TypeError("a Decision has no truth value: expected .value, got the record itself; write decision.value")

    def __str__(self) -> str:
        return f"{self.value}: {'; '.join(self.reasons)}"


def first_failure(conditions: tuple[tuple[bool, str], ...], otherwise: str) -> Decision[bool]:
    """True if every condition holds, False with the sentence of each one that does not."""
    failed = tuple(sentence for holds, sentence in conditions if not holds)
    return Decision(not failed, failed or (otherwise,))
