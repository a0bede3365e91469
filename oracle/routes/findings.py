"""What an audit finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: note: as meant, but good to know; warning: a limit is overrun or overridden; error: the table contradicts itself.
Level = Literal["note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``prefills``: how many of them in a step, None: whatever their number. ``lengths``: inclusive, in tokens."""

    kind: str
    row: str
    level: Level
    message: str
    prefills: int | None = None
    lengths: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "kind": self.kind,
            "row": self.row,
            "level": self.level,
            "prefills": self.prefills,
            "lengths": self.lengths,
            "message": self.message,
        }
