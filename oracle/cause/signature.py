"""What makes two failures the same: which checks fired, on which outputs, in which words.

Numbers, places and the check's own granularity are left out: a wrong row is a wrong element in a smaller case. What an
element, a row or a column missed counts as one kind, ``values``: a failure keeps its signature while its case shrinks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..verdict import Finding, Verdict

#: Checks on the sizes of errors; ``bias`` and ``lse`` see different things and stay themselves.
VALUES = ("element", "row", "query", "head", "column", "global", "bias")
_FIRST_OUTPUT = {"indexer_scores": "scores", "topk_select": "indices"}
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?|\binf\b|\bnan\b")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """One thing that went wrong."""

    check: str
    output: str
    pattern: str
    """The words of the finding without its numbers; empty for errors of size."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything that went wrong in one verdict."""

    marks: tuple[Mark, ...]

    def same(self, other: Signature) -> bool:
        """Whether ``other`` is this failure or a part of it: nothing in it is new.

        A smaller case may lose a mark, since fewer elements show less. A failure with a mark of another kind is another
        failure.
        """
        return bool(other.marks) and set(other.marks) <= set(self.marks)

    def __str__(self) -> str:
        told = [f"{m.check} of {m.output}" + (f" ({m.pattern})" if m.pattern else "") for m in self.marks]
        return "; ".join(told) or "no failure"

    def as_list(self) -> list[list[str]]:
        """JSON-ready."""
        return [[mark.check, mark.output, mark.pattern] for mark in self.marks]


def signature(verdict: Verdict) -> Signature:
    """The signature of a verdict; without marks unless it is FAIL or ERROR."""
    if verdict.status == "ERROR":
        return Signature((Mark("error", "-", _words(verdict.reason)),))
    if verdict.status != "FAIL":
        return Signature(())
    marks = {_mark(finding, verdict.case.operator) for finding in verdict.findings}
    return Signature(tuple(sorted(marks)))


def from_list(marks: list[list[str]]) -> Signature:
    """The inverse of ``as_list``."""
    return Signature(tuple(Mark(*mark) for mark in marks))


def _mark(finding: Finding, operator: str) -> Mark:
    first = _FIRST_OUTPUT.get(operator, "out")
    if finding.check in VALUES:
        return Mark("values", first, "")
    if finding.check == "lse":
        return Mark("lse", "lse", "")
    if finding.check == "sequence":
        return Mark("sequence", first, "the first answer" if "first answer" in finding.message else "a later answer")
    if finding.check == "rerun":
        return Mark("rerun", finding.message.split()[0], "")
    return Mark(finding.check, "lse" if finding.message.startswith("lse") else first, _words(finding.message))


def _words(message: str) -> str:
    return " ".join(_NUMBER.sub("", message).split())
