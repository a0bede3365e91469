"""Verdicts over time, in a SQLite file: what each cell (case and implementation) came to in every run.

A run has a random id, so files of several CI jobs merge without duplicates. A file that is none of ours, or damaged,
is refused and never written to.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..verdict import Verdict

#: "attn" as a big-endian integer: marks the file as ours (SQLite's application_id).
APPLICATION = 0x6174746E
VERSION = 1
#: Factor between two ratios of a cell that is worth a line.
MOVED = 1.5

_SCHEMA = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, date TEXT NOT NULL, commit_ TEXT, device TEXT NOT NULL, environment TEXT NOT NULL
);
CREATE TABLE verdicts (
    run TEXT NOT NULL REFERENCES runs(id), case_ TEXT NOT NULL, implementation TEXT NOT NULL, status TEXT NOT NULL,
    ratio REAL, seconds REAL NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (run, case_, implementation)
) WITHOUT ROWID;
CREATE INDEX cells ON verdicts (implementation, case_);
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One cell in one run."""

    date: str
    commit: str | None
    device: str
    case: str
    implementation: str
    status: str
    ratio: float | None
    """Largest error over budget; None where no element was compared."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One case with one implementation, over all runs, oldest first."""

    case: str
    implementation: str
    points: tuple[Point, ...]

    @property
    def moves(self) -> tuple[tuple[Point, Point], ...]:
        """Neighbouring runs between which the status changed or the ratio moved by more than ``MOVED``."""
        return tuple((a, b) for a, b in zip(self.points, self.points[1:], strict=False) if _moved(a, b))

    @property
    def last_move(self) -> float:
        """By how much the ratio moved the last time, as a factor; infinite where the status changed; 1: never."""
        if not self.moves:
            return 1.0
        a, b = self.moves[-1]
        if a.status != b.status or not a.ratio or not b.ratio:
            return float("inf")
        return max(a.ratio / b.ratio, b.ratio / a.ratio)


def _moved(a: Point, b: Point) -> bool:
    if a.status != b.status:
        return True
    if a.ratio is None or b.ratio is None:
        return a.ratio is not b.ratio
    low, high = sorted((a.ratio, b.ratio))
    return high > MOVED * low and high > 0.05  # below that a ratio is rounding noise


def check_target(path: str) -> None:
    """Raises BadInput where a history could not be added to, before the run."""
    with _opened(path, write=True):
        pass


def add(path: str, environment: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Add a run; makes the file if there is none."""
    run = uuid.uuid4().hex
    device = environment.get("device")
    name = device.get("name", "") if isinstance(device, Mapping) else str(device)
    with _opened(path, write=True) as base:
        base.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
            (run, environment["date"], environment.get("git"), name, json.dumps(environment)),
        )
        base.executemany(
            "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (run, v.case.id, v.implementation, v.status, v.worst_ratio, v.seconds, v.reason)
                for v in verdicts
                if v.status != "UNSUPPORTED"
            ],
        )


def merge(target: str, sources: Iterable[str]) -> int:
    """Add the runs of other files to ``target``; returns how many were new."""
    with _opened(target, write=True) as base:
        before = base.execute("SELECT count(*) FROM runs").fetchone()[0]
        for source in sources:
            with _opened(source) as other:
                base.executemany(
                    "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)", other.execute("SELECT * FROM runs")
                )
                base.executemany(
                    "INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)",
                    other.execute("SELECT * FROM verdicts"),
                )
        return int(base.execute("SELECT count(*) FROM runs").fetchone()[0]) - int(before)


def cells(paths: Sequence[str], *, case: str = "*", implementation: str = "*") -> tuple[Cell, ...]:
    """The cells of these files that match the patterns, those whose ratio moved most last first."""
    points: dict[tuple[str, str], dict[str, Point]] = {}
    for path in paths:
        with _opened(path) as base:
            rows = base.execute(
                "SELECT run, date, commit_, device, case_, implementation, status, ratio, seconds FROM verdicts "
                "JOIN runs ON runs.id = run WHERE case_ GLOB ? AND implementation GLOB ?",
                (case, implementation),
            )
            for run, *fields in rows:
                point = Point(*fields)
                points.setdefault((point.implementation, point.case), {})[run] = point
    found = [
        Cell(case_, name, tuple(sorted(by_run.values(), key=lambda point: point.date)))
        for (name, case_), by_run in sorted(points.items())
    ]
    return tuple(sorted(found, key=lambda cell: -cell.last_move))


@contextmanager
def _opened(path: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """The base of a file, checked; for writing it is made where it is absent, and what fails changes nothing."""
    file = Path(path)
    fresh = not file.exists()
    if fresh and not write:
        raise BadInput(f"history {path}: no such file; attnoracle check --history {path} makes one")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise BadInput(f"history {path}: expected a file in a folder that exists")
    try:
        base = sqlite3.connect(path, timeout=60.0)
    except sqlite3.Error as error:
        raise BadInput(f"history {path}: cannot be opened: {error}") from None
    try:
        with base:
            if fresh:
                base.executescript(f"{_SCHEMA} PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION};")
            _require_ours(path, base)
            yield base
    except sqlite3.Error as error:
        raise BadInput(f"history {path}: damaged or no history: {error}; name another file") from None
    finally:
        base.close()


def _require_ours(path: str, base: sqlite3.Connection) -> None:
    mark, version = (base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if mark != APPLICATION:
        raise BadInput(f"history {path}: a database of something else; name another file")
    if version != VERSION:
        raise BadInput(f"history {path}: expected version {VERSION}, got {version}; use the attnoracle that wrote it")
    told = base.execute("PRAGMA quick_check(1)").fetchone()[0]
    if told != "ok":
        raise BadInput(f"history {path}: damaged: {told}; name another file")
