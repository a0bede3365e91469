"""A file of JSON lines that a killed run goes on from: a head that says which run it is, then a line for each result.

Every line is handed to the operating system before the next job begins, so ``kill -9`` loses what was in flight and
nothing else. A last line that was cut off is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO


class StateFile:
    """Appends to the lines that are there; without a path nothing is kept.

    ``text`` are the whole lines it began with. Every method may raise OSError.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self.text = "" if self._path is None else whole_lines(self._path)
        self._file: TextIO | None = None

    def begin(self, head: Mapping[str, Any]) -> None:
        """Open it for more lines; an empty one gets its head first."""
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8")
            if not self.text:
                self.line(head)

    def line(self, record: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def whole_lines(path: Path) -> str:
    """The lines of the file that have an end, empty if there is none; one that was cut off is taken out of it.

    A file of nothing but a line without an end is no state that was cut off: it is given as it is.
    """
    if not path.exists():
        return ""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data) and whole:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return (whole or data).decode(errors="replace")
