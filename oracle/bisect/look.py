"""One look at one point: what a run showed there; and how to search among looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Label = Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Look:
    """What one run at one point showed.

    ``signature`` names the failure (``values of out``), empty where there is none; ``measure`` is the quantity that
    a bisection by threshold asks for. A skip says in ``detail`` why nothing could be judged.
    """

    label: Label
    signature: str = ""
    measure: float | None = None
    detail: str = ""
    seconds: float = 0.0
    log: str = ""
    """File with the output of the run, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to search."""

    runs: int = 2
    """Looks at each end before the search."""
    flaky: bool = False
    """Take verdicts as random from the start; else only where looks at one point disagree."""
    confidence: float = 0.99
    most: int = 2000
    """Looks at most after those at the ends, where verdicts are flaky."""
