"""A file of JSON lines that a killed run goes on from: a head that says which run it is, then a line for each result.

Every line is handed to the operating system before the next job begins, so ``kill -9`` loses what was in flight and
nothing else. A last line that was cut off is taken out when the run goes on, once it is known whose file it is.
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
        """Open it for more lines; an empty one gets its head first. Before this the file is only read."""
        if self._path is not None:
            take_out_cut_line(self._path)
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
    """The lines of the file that have an end, empty if there is none.

    A file of nothing but a line without an end is no state that was cut off: it is given as it is.
    """
    data = path.read_bytes() if path.exists() else b""
    return (_whole(data) or data).decode(errors="replace")


def take_out_cut_line(path: Path) -> None:
    """Take out a last line without an end; only of a file that was seen to be one's own."""
    data = path.read_bytes() if path.exists() else b""
    whole = _whole(data)
    if whole and len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
