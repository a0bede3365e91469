"""Verdicts counted, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..records.ledger import Outcome
from ..verdict import STATUSES, Status, Verdict

#: Exit codes of every command.
WELL, FAULT, NOTHING, BROKEN = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Summary:
    """How many verdicts there are of each status, and the exit code that follows."""

    counts: dict[Status, int]
    seconds: float
    """Of the whole run, by the clock."""
    known: int = 0
    """Failures that the ledger of known findings accepts."""
    problems: tuple[str, ...] = ()
    """What makes the run fail besides: known findings that pass."""
    notes: tuple[str, ...] = ()
    resumed: int = 0
    """Verdicts of an earlier run, from the file of ``--resume``."""

    @classmethod
    def of(
        cls, verdicts: Sequence[Verdict], seconds: float, ledger: Outcome | None = None, *, resumed: int = 0
    ) -> Summary:
        seen = Counter(verdict.status for verdict in verdicts)
        counts = {status: seen[status] for status in STATUSES}
        if ledger is None:
            return cls(counts, seconds, resumed=resumed)
        return cls(counts, seconds, len(ledger.known), ledger.problems, ledger.notes, resumed)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def judged(self) -> int:
        """Verdicts that say something: weak ones do not, nor what never ran."""
        return self.counts["PASS"] + self.counts["FAIL"] + self.counts["SUSPECT"]

    @property
    def exit_code(self) -> int:
        """1 with a failure that is not known, or a known one that passes; else 2 if nothing was judged; else 0."""
        if self.counts["FAIL"] + self.counts["ERROR"] > self.known or self.problems:
            return FAULT
        return WELL if self.judged else NOTHING

    def as_dict(self) -> dict[str, int | float | list[str]]:
        counts = {status.lower(): count for status, count in self.counts.items()}
        return {
            "total": self.total,
            "judged": self.judged,
            **counts,
            **({"known": self.known, "problems": list(self.problems)} if self.known or self.problems else {}),
            **({"resumed": self.resumed} if self.resumed else {}),
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
        }
