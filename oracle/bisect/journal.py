"""The journal of a bisection: a folder with one line of JSON for every look, and the logs of the runs.

It resumes (a look that is in it is not made again) and can be read by people: ``journal.jsonl`` begins with what is
bisected and ends with what was found.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..state_file import take_out_cut_line, whole_lines
from .look import Look

SCHEMA = "attnoracle.bisect-journal/1"
NAME = "journal.jsonl"


class Journal:
    """Looks by point name. Without a folder nothing is kept.

    Raises BadInput for a folder that holds the journal of another bisection, or a file that is none.
    """

    def __init__(self, folder: Path | None, head: dict[str, Any]) -> None:
        self.folder = folder
        self.looks: list[tuple[str, Look]] = []
        self._old: dict[str, deque[Look]] = defaultdict(deque)
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
            looks = [(record["point"], Look(**record["look"])) for record in records if "look" in record]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{path}: expected the journal of a bisection, got something else; name another") from None
        if differing:
            told = ", ".join(f"{name} was {found.get(name)!r}" for name in differing)
            raise BadInput(f"{path}: the journal of another bisection ({told}); name another folder or delete it")
        for point, look in looks:
            self._old[point].append(look)

    @property
    def waiting(self) -> int:
        """Looks of the earlier run that were not asked for yet."""
        return sum(map(len, self._old.values()))

    def look(self, point: str, make: Callable[[], Look]) -> Look:
        """The next look at a point: from the journal while it has any, else a new one, on disk before it counts."""
        if self._old[point]:
            found = self._old[point].popleft()
        else:
            found = make()
            self._line({"point": point, "look": asdict(found)})
        self.looks.append((point, found))
        return found

    def log(self, name: str) -> Path | None:
        """Where the output of a run goes."""
        if self.folder is None:
            return None
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{len(self.looks):04d}-{name}.txt"

    def note(self, **found: Any) -> None:
        """A line that says what came out."""
        self._line({"found": found})

    def _line(self, record: dict[str, Any]) -> None:
        if self.folder is not None:
            with (self.folder / NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
