"""The state of a run in a file: a line of JSON for each verdict, so that a run that was killed goes on.

Every line is handed to the operating system before the next job begins, so ``kill -9`` loses what was in flight and
nothing else. A last line that was cut off is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from .environment import commit, version
from .errors import BadInput
from .records import parse_verdict
from .reports.json_report import finite, verdict_record
from .verdict import Verdict
from .worker import Pair

SCHEMA = "attnoracle.check-state/1"


class Journal:
    """Verdicts by case and implementation. Without a path nothing is kept.

    ``settings`` is what a verdict depends on beside its pair: device, contracts of guests. Raises BadInput, and leaves
    the file as it is, for one that is no state and for that of another version, commit or setting.
    """

    def __init__(self, path: str | None, settings: Mapping[str, Any]) -> None:
        self.verdicts: dict[Pair, Verdict] = {}
        self._file: TextIO | None = None
        if path is None:
            return
        head = {"schema": SCHEMA, "attnoracle": version(), "git": commit(), **settings}
        try:
            text = whole_lines(Path(path))
            self.verdicts = _parsed(path, text, finite(head)) if text else {}
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 -- closed by __exit__
        except OSError as error:
            raise BadInput(f"--resume {path}: cannot be read and written: {error.strerror}") from None
        if not text:
            self._line(head)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.case, verdict.implementation] = verdict
        self._line(verdict_record(verdict))

    def _line(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(finite(record), allow_nan=False) + "\n")
            self._file.flush()


def whole_lines(path: Path) -> str:
    """The lines of the file that have an end, empty if there is none; one that was cut off is taken out of it."""
    if not path.exists():
        return ""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data) and whole:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.decode(errors="replace") if whole or not data else data.decode(errors="replace")


def _parsed(path: str, text: str, head: Mapping[str, Any]) -> dict[Pair, Verdict]:
    lines = text.splitlines()
    try:
        found = json.loads(lines[0])
        if found["schema"] != SCHEMA:
            raise KeyError
    except (ValueError, KeyError, TypeError, IndexError):
        raise BadInput(f"--resume {path}: line 1: expected the state of a check; name another file") from None
    differing = [name for name in head if found.get(name) != json.loads(json.dumps(head[name]))]
    if differing:
        raise BadInput(
            f"--resume {path}: the state of another run (differs in {', '.join(differing)}); name another file"
        )
    verdicts: dict[Pair, Verdict] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            verdict = parse_verdict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"--resume {path}: line {number}: expected a verdict: {error}") from None
        verdicts[verdict.case, verdict.implementation] = verdict
    return verdicts
