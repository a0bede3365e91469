"""Two parties asked the same questions: how often they agree, and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

#: Disagreements that are kept as examples.
KEPT = 3


@dataclass(slots=True)
class Comparison:
    """One decision or operator, compared on many cases."""

    name: str
    what: str
    probe: bool = False
    """Inputs that the engine itself never makes: what it does with them is worth knowing and no fault."""
    cases: int = 0
    disagreements: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Case, ours and the engine's of the first disagreements."""

    def note(self, case: Callable[[], Any], ours: Any, engine: Any) -> None:
        """Count a case; ``case`` describes it where it is kept."""
        self.cases += 1
        if ours != engine:
            self.disagreements += 1
            if len(self.examples) < KEPT:
                self.examples.append({"case": case(), "ours": ours, "engine": engine})


def findings(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One entry a comparison that has disagreements."""
    return [
        {
            "kind": "disagreement",
            "level": "note" if one.probe else "error",
            "name": one.name,
            "what": one.what,
            "cases": one.cases,
            "disagreements": one.disagreements,
            "examples": one.examples,
        }
        for one in comparisons
        if one.disagreements
    ]
