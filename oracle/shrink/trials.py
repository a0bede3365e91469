"""Whether a case still fails in the same way, asked as often as chance demands.

A failure that shows on every run needs one run. One that shows on a share p of them is first measured; a smaller case
is given up only after so many quiet runs that one failing half as often would have shown itself with the stated
confidence: (1 - p / 2)^n <= 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ..case import Case
from ..cause.signature import Signature, signature
from ..errors import BadInput
from ..verdict import Verdict

#: Runs of the original case that measure how often it fails.
FIRST_RUNS = 8
#: Most runs of one smaller case.
MOST_RUNS = 64


@dataclass(slots=True)
class Trials:
    """Runs cases and remembers what became of them."""

    run: Callable[[Case], Verdict]
    confidence: float = 0.99
    signature: Signature = field(default_factory=lambda: Signature(()))
    """Of the failure that is to be kept; known after ``begin``."""
    rate: float = 1.0
    """Share of runs on which the original case fails."""
    runs: int = 0
    slips: dict[str, Verdict] = field(default_factory=dict)
    """Other failures met on the way, by their signature."""
    seen: dict[Case, bool] = field(default_factory=dict)

    def begin(self, case: Case, *, flaky: bool) -> Verdict:
        """The failure of ``case``. Raises BadInput where it does not fail."""
        verdicts = [self._run(case) for _ in range(FIRST_RUNS if flaky else 1)]
        bad = [verdict for verdict in verdicts if verdict.bad]
        if not bad:
            often = f" on any of {len(verdicts)} runs" if flaky else ""
            raise BadInput(
                f"{verdicts[0].implementation} does not fail on {case.id}{often}: it is {verdicts[0].status}"
                + ("" if flaky else "; if it fails now and then, say --flaky")
            )
        self.signature = signature(bad[0])
        self.rate = len(bad) / len(verdicts)
        return bad[0]

    @property
    def patience(self) -> int:
        """Quiet runs after which a case counts as passing."""
        if self.rate == 1.0:
            return 1
        return min(MOST_RUNS, math.ceil(math.log(1.0 - self.confidence) / math.log(1.0 - self.rate / 2.0)))

    def fails(self, case: Case) -> bool:
        """Whether ``case`` fails in the same way; one that fails in another is put aside."""
        if case not in self.seen:
            self.seen[case] = any(self._same(case) for _ in range(self.patience))
        return self.seen[case]

    def _same(self, case: Case) -> bool:
        verdict = self._run(case)
        if not verdict.bad:
            return False
        found = signature(verdict)
        if not self.signature.same(found):
            self.slips.setdefault(str(found), verdict)
            return False
        return True

    def _run(self, case: Case) -> Verdict:
        self.runs += 1
        return self.run(case)
