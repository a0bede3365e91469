"""One finding of many failures.

Two failures of an implementation are one where the second shows nothing that the first did not (its signature) and has
the options that the first needs: shrinking takes every option away that a failure does without, so what is left is
its trigger. A failure with the same signature and without the trigger is looked into on its own, and joins the first
if it shrinks to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..case import Case
from ..cause.signature import Signature, from_list, signature
from ..inputs.batch import IDS
from ..verdict import Verdict
from .scenes import KINDS

#: Findings of one implementation that are looked into; of the rest the signature alone decides.
MOST = 4


@dataclass(slots=True)
class Finding:
    """One failure, however often it occurred."""

    place: int
    """Where it occurred first, in the order of planning."""
    verdict: Verdict
    """What it was then."""
    signature: Signature
    """Of that, and once it was looked into of its smallest case."""
    count: int = 1
    devices: set[str] = field(default_factory=set)
    case: Case | None = None
    """The smallest case that fails in the same way; None until it was looked for, and where there is none."""
    cause: dict[str, Any] | None = None
    """What looking into it gave (see ``cause.py``)."""
    again: str = ""
    """Status of the smallest case when a later night began; empty where none did."""

    @property
    def implementation(self) -> str:
        return self.verdict.implementation

    @property
    def smallest(self) -> Case:
        return self.case or self.verdict.case

    @property
    def trigger(self) -> frozenset[str]:
        """Options that it needs, as far as that is known."""
        return trigger(self.smallest)

    def holds(self, verdict: Verdict, *, needs: bool) -> bool:
        """Whether a failure of the same implementation is this one; ``needs``: it must have the trigger."""
        same = Signature(tuple({*signature(self.verdict).marks, *self.signature.marks})).same(signature(verdict))
        return same and (not needs or self.trigger <= trigger(verdict.case))


def trigger(case: Case) -> frozenset[str]:
    """Options of a case but for the names of its requests; of a sequence the options are its steps."""
    if case.operator in KINDS:
        return frozenset()
    return frozenset(option for option in case.options if not option.startswith(IDS))


class Findings:
    """All findings of a campaign. ``look`` is called with each that is new; ``settle`` takes what that gave."""

    def __init__(self, look: Callable[[Finding], None]) -> None:
        self._look = look
        self._all: list[Finding] = []
        self._waiting: list[tuple[int, Verdict]] = []
        """Failures that may belong to a finding whose trigger is not known yet."""

    def __iter__(self) -> Any:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def failures(self) -> int:
        return sum(finding.count for finding in self._all) + len(self._waiting)

    def file(self, place: int, verdict: Verdict) -> None:
        """Take in a failure."""
        ours = [finding for finding in self._all if finding.implementation == verdict.implementation]
        full = len(ours) >= MOST
        for finding in ours:
            if finding.cause is not None and finding.holds(verdict, needs=not full):
                finding.count += 1
                finding.devices.add(verdict.device)
                return
        if any(finding.cause is None and finding.holds(verdict, needs=False) for finding in ours):
            self._waiting.append((place, verdict))
            return
        new = Finding(place, verdict, signature(verdict), devices={verdict.device})
        self._all.append(new)
        self._look(new)

    def settle(self, place: int, cause: Mapping[str, Any]) -> None:
        """Take in what looking into the finding of that place gave, and file what waited for it."""
        finding = next((one for one in self._all if one.place == place), None)
        if finding is None:
            return
        finding.cause = dict(cause)
        if cause.get("case"):
            finding.case = Case.parse(cause["case"])
            finding.signature = from_list(cause["signature"])
        self._join(finding)
        waiting, self._waiting = self._waiting, []
        for number, verdict in waiting:
            self.file(number, verdict)

    def _join(self, finding: Finding) -> None:
        """Make one of two that shrank to the same."""
        for other in self._all:
            if other is finding or other.cause is None or other.implementation != finding.implementation:
                continue
            if other.signature == finding.signature and other.trigger <= finding.trigger:
                other.count += finding.count
                other.devices |= finding.devices
                self._all.remove(finding)
                return
