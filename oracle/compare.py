"""Two implementations, or two releases of a package under one, on the same cases: who is off, where, by how much."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .bisect.packages import interpreter
from .bisect.probe import run
from .errors import BadInput

Record = Mapping[str, Any]
#: Who of the two is off on a case; ``unjudged`` where at least one side gave no answer that could be compared.
Outcome = Literal["neither", "a", "b", "both", "unjudged"]
OUTCOMES: tuple[Outcome, ...] = ("neither", "a", "b", "both", "unjudged")
_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Pair:
    """The verdict records of both sides on one case."""

    case: str
    a: Record
    b: Record

    @property
    def outcome(self) -> Outcome:
        if any(side["status"] in ("UNSUPPORTED", "WEAK") for side in (self.a, self.b)):
            return "unjudged"
        a, b = (side["status"] in ("FAIL", "ERROR") for side in (self.a, self.b))
        if a and b:
            return "both"
        return "a" if a else "b" if b else "neither"

    @property
    def ratios(self) -> tuple[float, float]:
        """Largest error over budget of each side; NaN where nothing was compared."""
        return ratio(self.a), ratio(self.b)

    @property
    def same_failure(self) -> bool:
        """Whether both are off at the same checks and the same worst element, by the same value."""
        return self.outcome == "both" and _fingerprint(self.a) == _fingerprint(self.b)


def ratio(record: Record) -> float:
    """``worst_ratio`` of a verdict record as a number."""
    value = record["worst_ratio"]
    return math.nan if value is None else float(value)


def _fingerprint(record: Record) -> tuple[Any, ...]:
    worst = record["worst"][:1]
    return tuple(finding["check"] for finding in record["findings"]), str(worst)


def paired(a: Sequence[Record], b: Sequence[Record]) -> list[Pair]:
    """The cases that both sides have, in the order of the first."""
    other = {record["case"]["id"]: record for record in b}
    return [
        Pair(record["case"]["id"], record, other[record["case"]["id"]]) for record in a if record["case"]["id"] in other
    ]


def released(package: str, version: str, arguments: Sequence[str], cache: Path) -> list[Record]:
    """Verdict records of ``attnoracle check`` with that release installed beside everything else.

    Raises BadInput where it cannot be installed, or where the check gave no verdicts, with the end of its output.
    """
    found = interpreter(cache, {package: version})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdicts.json"
        command = [str(found), "-m", "attnoracle.oracle", "check", *arguments, "--quiet", "--json", str(file)]
        ran = run(command, cwd=None, env=os.environ, timeout=_SECONDS, log="")
        if not file.is_file():
            end = " ".join(ran.tail.split()[-40:]) or "no output"
            raise BadInput(f"with {package} {version} the check gave no verdicts: {end}")
        document = json.loads(file.read_text(encoding="utf-8"))
    records: list[Record] = document["verdicts"]
    return records
