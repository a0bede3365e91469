"""What makes two failures the same: which checks fired, on which outputs, in which words.

Numbers, places and the check's own granularity are left out: a wrong row is a wrong element in a smaller case. What an
element, a row or a column missed counts as one kind, ``values``: a failure keeps its signature while its case shrinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..calling.place import without
from ..verdict import Verdict

#: Checks on the sizes of errors; ``bias`` and ``lse`` see different things and stay themselves.
VALUES = ("element", "row", "query", "head", "column", "global", "bias")
#: Between the marks of a printed signature.
_BETWEEN = "; "
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
        return _BETWEEN.join(told) or "no failure"

    def as_list(self) -> list[list[str]]:
        """JSON-ready."""
        return [[mark.check, mark.output, mark.pattern] for mark in self.marks]


def signature(verdict: Verdict) -> Signature:
    """The signature of a verdict; without marks unless it is FAIL or ERROR."""
    findings = [(finding.check, finding.message) for finding in verdict.findings]
    return _signature(verdict.status, verdict.reason, verdict.case.operator, findings)


def signature_of(record: Mapping[str, Any]) -> Signature:
    """The same of a verdict as a JSON document holds it."""
    findings = [(finding["check"], finding["message"]) for finding in record["findings"]]
    return _signature(record["status"], record["reason"], record["case"]["operator"], findings)


def part_of(seen: str, sought: str) -> bool:
    """``Signature.same`` of two failures as they are printed, or as a command of the user's names them."""
    return bool(seen) and set(seen.split(_BETWEEN)) <= set(sought.split(_BETWEEN))


def from_list(marks: list[list[str]]) -> Signature:
    """The inverse of ``as_list``."""
    return Signature(tuple(Mark(*mark) for mark in marks))


def _signature(status: str, reason: str, operator: str, findings: Iterable[tuple[str, str]]) -> Signature:
    if status == "ERROR":
        return Signature((Mark("error", "-", _words(without(reason))),))
    if status != "FAIL":
        return Signature(())
    return Signature(tuple(sorted({_mark(check, message, operator) for check, message in findings})))


def _mark(check: str, message: str, operator: str) -> Mark:
    first = _FIRST_OUTPUT.get(operator, "out")
    if check in VALUES:
        return Mark("values", first, "")
    if check == "lse":
        return Mark("lse", "lse", "")
    if check == "sequence":
        return Mark("sequence", first, "the first answer" if "first answer" in message else "a later answer")
    if check == "rerun":
        return Mark("rerun", message.split()[0], "")
    return Mark(check, "lse" if message.startswith("lse") else first, _words(message))


def _words(message: str) -> str:
    return " ".join(_NUMBER.sub("", message).replace(_BETWEEN.strip(), ",").split())
