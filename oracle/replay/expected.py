"""What a step or a case of an incident gave, and whether that is what it was to give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One judged scene or case of one variant."""

    variant: str
    name: str
    """Of the scene or case."""
    companion: bool
    """Whether it is right even in faulty variants."""
    status: Literal["PASS", "FAIL"]
    detected_by: tuple[str, ...]
    wanted: Literal["PASS", "FAIL"]
    wanted_by: tuple[str, ...]
    said: tuple[str, ...]
    """What each party that saw something said, in words."""
    worst: float
    """Largest error relative to its budget; 0 where numbers were not reached."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """The status is the wanted one, and everybody who must see the failure did."""
        return self.status == self.wanted and set(self.wanted_by) <= set(self.detected_by)
