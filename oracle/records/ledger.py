"""Known findings: failures that were looked at and accepted for a time, each with a link and a day on which it ends.

::

    [[finding]]
    implementation = "sparse_mqa/mine"           # patterns like 'sparse_mqa/*' too
    case = "sparse_mqa:glm-5:*:lengths:*"
    checks = ["lse"]                             # optional: another check that fires is a new failure
    link = "https://github.com/me/kernels/issues/7"
    expires = 2027-03-01

A failure that an entry covers does not fail the run. An entry whose cases all pass does: it is out of date. After its
day an entry covers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import BadInput, unknown
from ..toml_file import read_toml
from ..verdict import Verdict

_KEYS = ("implementation", "case", "checks", "link", "expires", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One entry."""

    implementation: str
    case: str
    link: str
    expires: date
    checks: tuple[str, ...] = ()
    reason: str = ""

    def names(self, verdict: Verdict) -> bool:
        """Whether it speaks of this implementation and case."""
        return fnmatchcase(verdict.implementation, self.implementation) and fnmatchcase(verdict.case.id, self.case)

    def covers(self, verdict: Verdict, today: date) -> bool:
        """Whether it accepts this failure today."""
        fired = {finding.check for finding in verdict.findings}
        within = not self.checks or (bool(fired) and fired <= set(self.checks))
        return self.names(verdict) and today <= self.expires and within


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ledger makes of the verdicts of a run."""

    known: dict[int, Known] = field(default_factory=dict)
    """Place of a verdict that fails and is accepted -> the entry."""
    problems: tuple[str, ...] = ()
    """What is wrong with the ledger itself: each makes the run fail."""
    notes: tuple[str, ...] = ()


def read(path: str) -> tuple[Known, ...]:
    """The entries of a ledger. Raises BadInput with the entry, what was expected and what came."""
    table = read_toml(Path(path), f"--known {path}")
    entries = table.get("finding", [])
    if set(table) - {"finding"} or not isinstance(entries, list):
        raise BadInput(f"--known {path}: expected [[finding]] tables, got {', '.join(table) or 'nothing'}")
    return tuple(_entry(f"--known {path}: finding {number}", entry) for number, entry in enumerate(entries, 1))


def _entry(place: str, entry: Any) -> Known:
    if not isinstance(entry, dict):
        raise BadInput(f"{place}: expected a table, got {entry!r}")
    for key in entry:
        if key not in _KEYS:
            raise unknown(f"key of {place}", key, _KEYS)
    for key in ("implementation", "case", "link"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise BadInput(f"{place}: {key}: expected text, got {entry.get(key)!r}")
    if not entry["link"].startswith(("https://", "http://")):
        raise BadInput(f"{place}: link: expected the address of an issue, got {entry['link']!r}")
    expires = entry.get("expires")
    if not isinstance(expires, date) or isinstance(expires, datetime):
        raise BadInput(f"{place}: expires: expected a day like 2027-03-01, without quotes, got {expires!r}")
    checks = entry.get("checks", [])
    if not isinstance(checks, list) or not all(isinstance(check, str) for check in checks):
        raise BadInput(f"{place}: checks: expected a list of names of checks, got {checks!r}")
    return Known(
        implementation=entry["implementation"],
        case=entry["case"],
        link=entry["link"],
        expires=expires,
        checks=tuple(checks),
        reason=str(entry.get("reason", "")),
    )


def apply(entries: Sequence[Known], verdicts: Sequence[Verdict], today: date) -> Outcome:
    """Which failures are accepted, and which entries are out of date."""
    known: dict[int, Known] = {}
    for place, verdict in enumerate(verdicts):
        entry = next((one for one in entries if verdict.bad and one.covers(verdict, today)), None)
        if entry is not None:
            known[place] = entry
    problems, notes = [], []
    for entry in entries:
        named = [verdict for verdict in verdicts if entry.names(verdict)]
        what = f"{entry.implementation} on {entry.case} ({entry.link})"
        if any(verdict.status == "PASS" for verdict in named) and not any(verdict.bad for verdict in named):
            problems.append(f"known finding passes: {what}; take it out of the ledger")
        elif any(verdict.bad for verdict in named) and today > entry.expires:
            notes.append(f"known finding expired on {entry.expires}: {what}")
        elif not named:
            notes.append(f"known finding not tried in this run: {what}")
    return Outcome(known, tuple(problems), tuple(notes))
