"""The corpus of a campaign on disk: every case that was planned, what became of it, and what was found.

A folder with ``corpus.jsonl``, a line for each thing as it happens, and ``findings/`` with a bundle each. A plan is
written before its cases run and every verdict as it comes, so ``kill -9`` loses no case: what was planned and not
judged runs first when the campaign goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ..case import Case
from ..environment import version
from ..errors import BadInput
from ..fleet.worker import Pair
from ..records.state_file import StateFile
from .result import Result

NAME, VERSION = "attnoracle.corpus", 1
_SCHEMA = re.compile(rf"{re.escape(NAME)}/(\d+)")


class Corpus:
    """Opened for one campaign at a time. Raises BadInput, and changes nothing, for a file that is damaged, of a newer
    version, of something else, or in use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.file = self.folder / "corpus.jsonl"
        self.plans: dict[int, list[Pair]] = {}
        """Round -> its pairs."""
        self.results: dict[int, Result] = {}
        """Place in the order of planning -> what it came to."""
        self.causes: dict[int, dict[str, Any]] = {}
        """Place of the first failure of a finding -> what was found out about it."""
        self.nights: list[dict[str, Any]] = []
        """When it was run, for how long, by what."""
        if self.folder.exists() and not self.folder.is_dir():
            raise BadInput(f"corpus {folder}: expected a folder, got a file")
        if not self.folder.parent.is_dir():
            raise BadInput(f"corpus {folder}: no folder {self.folder.parent}; make it first")
        try:
            if self.file.exists():
                self._require_ours()
            self.folder.mkdir(exist_ok=True)
            self._lock = _locked(self.folder / "lock")
        except OSError as error:
            raise BadInput(f"corpus {folder}: cannot be read and written: {error.strerror or error}") from None
        try:
            self._state = StateFile(str(self.file))
            self._read(self._state.text)
            self._state.begin({"schema": f"{NAME}/{VERSION}", "attnoracle": version()})
        except (OSError, BadInput) as error:
            self._lock.close()
            if isinstance(error, OSError):
                raise BadInput(f"corpus {folder}: cannot be read and written: {error.strerror or error}") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._state.__exit__(None, None, None)
        self._lock.close()

    def plan(self, number: int, pairs: Sequence[Pair]) -> None:
        self.plans[number] = list(pairs)
        self._state.line({"round": number, "pairs": [[case.id, name] for case, name in pairs]})

    def result(self, place: int, result: Result) -> None:
        self.results[place] = result
        self._state.line({"place": place, **result.record()})

    def cause(self, place: int, record: dict[str, Any]) -> None:
        self.causes[place] = record
        self._state.line({"finding": place, **record})

    def night(self, record: dict[str, Any]) -> None:
        self.nights.append(record)
        self._state.line({"night": record})

    def planned(self) -> Iterator[tuple[int, Pair]]:
        """Every pair with its place, in order."""
        place = 0
        for number in sorted(self.plans):
            for pair in self.plans[number]:
                yield place, pair
                place += 1

    def _require_ours(self) -> None:
        """Before anything is written: the first line says what the file is."""
        with self.file.open("rb") as file:
            first = file.readline(4096)
        if not first:
            return
        try:
            found = _SCHEMA.fullmatch(json.loads(first)["schema"])
        except (ValueError, KeyError, TypeError):
            found = None
        if found is None:
            raise BadInput(f"corpus {self.file}: line 1: expected the head of a corpus; name another folder")
        if int(found[1]) > VERSION:
            raise BadInput(
                f"corpus {self.file}: version {found[1]}, this attnoracle reads {VERSION}; use the newer attnoracle "
                "that wrote it, or name another folder"
            )

    def _read(self, text: str) -> None:
        for number, line in enumerate(text.splitlines()[1:], 2):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadInput(
                    f"corpus {self.file}: line {number}: damaged: {error}; mend the line, or name another folder"
                ) from None
        places = sum(map(len, self.plans.values()))
        if sorted(self.plans) != list(range(len(self.plans))) or any(not 0 <= one < places for one in self.results):
            raise BadInput(f"corpus {self.file}: damaged: a line is missing; name another folder")

    def _take(self, record: Mapping[str, Any]) -> None:
        if "round" in record:
            self.plans[int(record["round"])] = [(Case.parse(case), str(name)) for case, name in record["pairs"]]
        elif "place" in record:
            self.results[int(record["place"])] = Result.parse(record)
        elif "finding" in record:
            self.causes[int(record["finding"])] = {key: value for key, value in record.items() if key != "finding"}
        else:
            self.nights.append(dict(record["night"]))


def _locked(path: Path) -> Any:
    """An open file that only one process can have; given back by the system when the process ends, however it does."""
    file = path.open("w")
    try:
        import fcntl
    except ImportError:  # not on this platform
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BadInput(
            f"corpus {path.parent}: another campaign is at work on it; wait, or name another folder"
        ) from None
    return file
