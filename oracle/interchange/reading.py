"""JSON from elsewhere, looked at field by field: whatever is not as expected is told with its file, line and field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BadInput


@dataclass(frozen=True, slots=True)
class At:
    """One value and where it stands."""

    value: Any
    file: Path
    line: int = 0
    """0: the file is one JSON text."""
    field: str = ""

    def bad(self, expected: str) -> BadInput:
        line = f":{self.line}" if self.line else ""
        return BadInput(f"{self.file}{line}: {self.field or 'it'}: expected {expected}, got {_short(self.value)}")

    def _within(self, key: str, value: Any) -> At:
        return replace(self, value=value, field=f"{self.field}.{key}" if self.field else key)

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, dict):
            raise self.bad("an object")
        return self.value

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.object().get(key) is not None

    def __getitem__(self, key: str) -> At:
        if key not in self.object():
            raise self._within(key, None).bad("this field, which is required")
        return self._within(key, self.object()[key])

    def items(self) -> Iterator[tuple[str, At]]:
        for key, value in self.object().items():
            yield key, self._within(key, value)

    def elements(self) -> list[At]:
        if not isinstance(self.value, list):
            raise self.bad("an array")
        return [replace(self, value=one, field=f"{self.field}[{place}]") for place, one in enumerate(self.value)]

    def only(self, *keys: str) -> None:
        """Raises BadInput for a field that is none of these."""
        for key, one in self.items():
            if key not in keys:
                raise one.bad(f"one of {', '.join(keys)} as the name of the field")

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.bad("a string that is not empty")
        return self.value

    def integer(self, least: int = 0) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            raise self.bad(f"an integer of at least {least}")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise self.bad("a finite number")
        return float(self.value)

    def one_of(self, names: tuple[str, ...]) -> str:
        if self.value not in names:
            raise self.bad(f"one of {', '.join(names)}")
        return str(self.value)


def document(path: Path) -> At:
    """A file that is one JSON text."""
    return At(_parsed(_text(path), At(None, path)), path)


def lines(path: Path) -> Iterator[At]:
    """A file with a JSON text a line; empty lines are none."""
    for number, text in enumerate(_text(path).splitlines(), 1):
        if text.strip():
            at = At(None, path, number)
            yield replace(at, value=_parsed(text, at))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def _parsed(text: str, at: At) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise replace(at, value=text).bad(f"JSON ({error})") from None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
