"""The journal of a bisection: a folder with one line of JSON for every look, and the logs of the runs.

It resumes (a look that is in it is not made again) and can be read by people: ``journal.jsonl`` begins with what is
bisected and ends with what was found. A look that was made before the search asked for it has a line of its own, and
a second one when it counts; what was never asked for has the first alone.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..records.state_file import take_out_cut_line, whole_lines
from .look import Look

SCHEMA = "attnoracle.bisect-journal/1"
NAME = "journal.jsonl"
#: Characters of a value that are shown where two journals differ.
_WIDTH = 60


def _differences(found: Mapping[str, Any], head: Mapping[str, Any], of: str = "") -> Iterator[str]:
    """``probe.timeout was 600.0, now 20.0`` of every field that differs, and of no other."""
    for name in dict.fromkeys((*found, *head)):
        was, now = found.get(name), head.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now, f"{of}{name}.")
        elif was != now:
            yield f"{of}{name} was {_shown(was)}, now {_shown(now)}"


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


class Journal:
    """Looks by point name. Without a folder nothing is kept.

    Raises BadInput for a folder that holds the journal of another bisection, or a file that is none.
    """

    def __init__(self, folder: Path | None, head: dict[str, Any]) -> None:
        self.folder = folder
        self.looks: list[tuple[str, Look]] = []
        self._old: dict[str, deque[tuple[Look, bool]]] = defaultdict(deque)
        """Looks of an earlier run that were not asked for yet, and whether they counted there."""
        self._logs = 0
        if folder is None:
            return
        head = {"schema": SCHEMA, **head}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / NAME
            text = whole_lines(path)
            if text:
                self._read(path, text.splitlines(), head)
                take_out_cut_line(path)
        except OSError as error:
            raise BadInput(f"--journal {folder}: cannot be read and written: {error.strerror}") from None
        if not text:
            self._line(head)

    def _read(self, path: Path, lines: list[str], head: dict[str, Any]) -> None:
        try:
            found, *records = [json.loads(line) for line in lines]
            differing = sorted(name for name in {*head, *found} if found.get(name) != head.get(name))
            looks, early = (
                [(record["point"], Look(**record[kind])) for record in records if kind in record]
                for kind in ("look", "ahead")
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path}: expected the journal of a bisection, got something else; name another") from None
        if differing:
            told = ", ".join(_differences(found, head))
            raise BadInput(f"{path}: the journal of another bisection ({told}); name another folder or delete it")
        self._logs = len(looks) + len(early)
        for point, look in looks:
            self._old[point].append((look, True))
            if (point, look) in early:
                early.remove((point, look))
        for point, look in early:
            self._old[point].append((look, False))

    @property
    def waiting(self) -> int:
        """Looks of the earlier run that were not asked for yet."""
        return sum(map(len, self._old.values()))

    @property
    def ahead(self) -> int:
        """Those of them that did not count there either."""
        return sum(not counted for looks in self._old.values() for _, counted in looks)

    def stored(self, point: str) -> list[Look]:
        """Looks of the earlier run at a point that were not asked for yet, in their order."""
        return [look for look, _ in self._old[point]] if point in self._old else []

    def take(self, point: str) -> Look:
        """The next of them; it counts from now on."""
        found, counted = self._old[point].popleft()
        if counted:
            self.looks.append((point, found))
            return found
        return self.count(point, found)

    def count(self, point: str, look: Look) -> Look:
        """A look that counts: on disk before the search knows of it."""
        self._line({"point": point, "look": asdict(look)})
        self.looks.append((point, look))
        return look

    def keep(self, point: str, look: Look) -> None:
        """A look that was made ahead and does not count yet."""
        self._line({"point": point, "ahead": asdict(look)})

    def log(self) -> Callable[[str], str]:
        """Where the outputs of one look go, by name; empty: nowhere."""
        number, self._logs = self._logs, self._logs + 1
        if self.folder is None:
            return lambda name: ""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return lambda name: str(logs / f"{number:04d}-{name}.txt")

    def note(self, **found: Any) -> None:
        """A line that says what came out."""
        self._line({"found": found})

    def _line(self, record: dict[str, Any]) -> None:
        if self.folder is not None:
            with (self.folder / NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
