"""The outcome of one check: what was found, how sure it is, and how to see it again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from .case import Case

Status = Literal["PASS", "FAIL", "SUSPECT", "WEAK", "UNSUPPORTED", "ERROR"]
STATUSES: tuple[Status, ...] = ("PASS", "FAIL", "SUSPECT", "WEAK", "UNSUPPORTED", "ERROR")


@dataclass(frozen=True, slots=True)
class Worst:
    """One element that lies outside, or nearest to, its budget."""

    output: str
    """Name of the output tensor, ``out`` or ``lse`` for attention."""
    index: tuple[int, ...]
    observed: float
    expected: float
    budget: float

    @property
    def ratio(self) -> float:
        """Error over budget; above 1 is outside."""
        error = abs(self.observed - self.expected)
        return error / self.budget if self.budget > 0 else (0.0 if error == 0 else float("inf"))


@dataclass(frozen=True, slots=True)
class Finding:
    """One check that did not hold."""

    check: str
    """element, row, global, bias, lse, structure, memory, topk, rerun, power …"""
    message: str
    proved: bool
    """True: the declared contract is violated for certain. False: by the statistics, at ``p_value``."""
    p_value: float | None = None
    where: str = ""
    """Where the errors lie: heads, rows, tiles."""
    convention: str = ""
    """Name of the convention under which the answer would be right (``judge/conventions.py``), `` | `` between several
    that this input cannot tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What ``check(case, implementation)`` returns."""

    case: Case
    implementation: str
    status: Status
    reason: str = ""
    """One line; empty for PASS."""
    findings: tuple[Finding, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    """Worst element ratio, row and global statistics, bias effect, LSE ratio, calibration: all unit-free ratios
    to their limits unless the name says otherwise."""
    worst: tuple[Worst, ...] = ()
    error_map: tuple[tuple[float, ...], ...] = ()
    """Of an attention answer that fails: squared errors of queries (down) and heads (across) over what rounding
    explains, the largest of each patch of at most 32 x 32."""
    seconds: float = 0.0
    device: str = "cpu"
    """``cpu``, or the GPU by its name; ``cuda`` where nothing that ran could tell it."""
    origin: str = ""
    """Options of a command that name the implementation and the geometry where their names alone do not."""

    @property
    def judged(self) -> bool:
        """Whether the implementation ran and its answer was compared."""
        return self.status in ("PASS", "FAIL", "SUSPECT", "WEAK")

    @property
    def bad(self) -> bool:
        """Whether this verdict makes a run fail."""
        return self.status in ("FAIL", "ERROR")

    @property
    def proved(self) -> bool:
        """Whether the declared contract is violated for certain, not only by the statistics."""
        return any(finding.proved for finding in self.findings)

    @property
    def worst_ratio(self) -> float | None:
        """Largest error over budget; infinite for a NaN; None where no element was compared."""
        ratios = [worst.ratio for worst in self.worst] or [
            self.measures[name] for name in ("element", "lse") if name in self.measures
        ]
        return max((math.inf if math.isnan(ratio) else ratio for ratio in ratios), default=None)

    @property
    def arguments(self) -> str:
        """The options of a command that name the implementation and the device that it ran on."""
        named = self.origin if "--impl " in self.origin else f"--implementation {self.implementation} {self.origin}"
        # ``device`` is the name of a GPU, which no option takes.
        where = "cpu" if self.device == "cpu" else "cuda"
        return f"{named.strip()} --device {where}"

    @property
    def repro(self) -> str:
        """The exact command that runs this check again."""
        return f"attnoracle repro '{self.case.id}' {self.arguments}"
