"""Runs a bundle again and says whether the failure is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..case import Case
from ..cause.named import Make
from ..cause.signature import signature
from ..check import check
from ..inputs import Inputs
from ..verdict import Verdict
from .read import Bundle

Outcome = Literal["same", "part", "another", "gone", "cannot"]
WORDS: dict[Outcome, str] = {
    "same": "the same failure",
    "part": "a part of the failure: nothing new, and not all of it",
    "another": "another failure",
    "gone": "the failure is gone",
    "cannot": "it cannot run here",
}


@dataclass(frozen=True, slots=True)
class Replay:
    """One more run of a bundle."""

    bundle: Bundle
    verdict: Verdict
    outcome: Outcome
    stored: bool
    """Whether the stored tensors were used, because this version draws others for the case."""

    def __str__(self) -> str:
        lines = [f"{WORDS[self.outcome]} ({self.verdict.status} on {self.verdict.device})"]
        if self.outcome in ("part", "another"):
            lines.append(f"  bundled: {self.bundle.signature}\n  now:     {signature(self.verdict)}")
        if self.outcome == "cannot":
            lines.append(f"  {self.verdict.reason}")
        if self.stored:
            lines.append("  on the stored tensors: this version draws other values for the case")
        was, now = self.bundle.verdict.get("device", "?"), self.verdict.device
        if was != now:
            lines.append(f"  bundled on {was}; this run is on {now}")
            if self.outcome == "gone" and now == "cpu":
                lines.append("  the kernel was compiled there: what the compiler, the order of blocks or the units")
                lines.append("  of that device did is not replayed here, and neither is a race")
        return "\n".join(lines)


def replay(bundle: Bundle, make: Make, device: str) -> Replay:
    """Judge ``make()`` on the bundle's inputs."""
    stored = bundle.drifted(device)

    def draw(case: Case, where: str) -> Inputs:
        return bundle.inputs(where)

    verdict = check(bundle.case, make(), device=device, sequence=bundle.sequence, draw=draw)
    return Replay(bundle, verdict, outcome(bundle, verdict), stored)


def outcome(bundle: Bundle, verdict: Verdict) -> Outcome:
    """How a verdict of now compares to the one that was bundled."""
    if verdict.status == "UNSUPPORTED":
        return "cannot"
    if not verdict.bad:
        return "gone"
    now = signature(verdict)
    if now == bundle.signature:
        return "same"
    return "part" if bundle.signature.same(now) else "another"
