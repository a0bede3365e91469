"""Typed access to one config file: every read checks its value and leaves a note of where it came from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput

#: Where RoPE fields live: transformers 5, transformers 4.
_ROPE_BLOCKS = ("rope_parameters", "rope_scaling")
_LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Reader:
    """The fields of one config; a JSON null counts as absent."""

    path: Path
    fields: Mapping[str, Any]
    prefix: str = ""
    """``text_config.`` where a multimodal config nests its language model."""
    sources: dict[str, str] = field(default_factory=dict)
    """Field of the geometry -> key it was read from."""

    def bad(self, key: str, expected: str, got: object) -> BadInput:
        found = "found none" if got is None else f"got {_short(got)}"
        return BadInput(f"{self.path}: field {key!r}: expected {expected}, {found}")

    def has(self, key: str) -> bool:
        return self.fields.get(key) is not None

    def raw(self, key: str) -> Any:
        return self.fields.get(key)

    def count(self, key: str, *, least: int = 1, field: str | None = None) -> int:
        """A whole number that must be there."""
        value = self.fields.get(key)
        if type(value) is not int or not least <= value <= _LARGEST:
            most = f" and at most {_LARGEST}" if type(value) is int and value > _LARGEST else ""
            raise self.bad(key, f"a whole number of at least {least}{most}", value)
        self.sources[field or key] = f"{self.prefix}{key}"
        return value

    def optional_count(self, key: str, *, least: int = 1, field: str | None = None) -> int | None:
        if not self.has(key):
            self.sources[field or key] = f"none: no {self.prefix}{key}"
            return None
        return self.count(key, least=least, field=field)

    def flag(self, key: str, *, field: str) -> bool | None:
        value = self.fields.get(key)
        if value is not None and type(value) is not bool:
            raise self.bad(key, "true or false", value)
        if value is not None:
            self.sources[field] = f"{self.prefix}{key}"
        return value

    def text(self, key: str) -> str | None:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, str):
            raise self.bad(key, "a string", value)
        return value

    def rope_type(self) -> str:
        """``default`` where no block names a type; the blocks and both spellings of the key must agree."""
        found = {
            f"{block}.{key}": self._block(block).get(key) for block in _ROPE_BLOCKS for key in ("rope_type", "type")
        }
        kind = self._agreed("rope_type", {key: value for key, value in found.items() if value is not None})
        if kind is not None and not isinstance(kind, str):
            raise self.bad("rope_type", "a string", kind)
        return kind or "default"

    def rope(self, key: str, *, required: bool = True) -> float | None:
        """A number of the RoPE block."""
        found = {f"{block}.{key}": self._block(block).get(key) for block in _ROPE_BLOCKS}
        value = self._agreed(key, {place: item for place, item in found.items() if item is not None})
        if value is None and not required:
            return None
        return self._number(f"{' or '.join(_ROPE_BLOCKS)}.{key}" if value is None else key, value)

    def theta(self) -> float:
        """``rope_theta``, at the top level or in a RoPE block."""
        found = {"rope_theta": self.fields.get("rope_theta")}
        found |= {f"{block}.rope_theta": self._block(block).get("rope_theta") for block in _ROPE_BLOCKS}
        found = {place: value for place, value in found.items() if value is not None}
        value = self._number("rope_theta", self._agreed("rope_theta", found))
        self.sources["rope_theta"] = f"{self.prefix}{next(iter(found))}"
        return value

    def _block(self, key: str) -> Mapping[str, Any]:
        value = self.fields.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.bad(key, "an object", value)
        return value or {}

    def _agreed(self, key: str, found: Mapping[str, Any]) -> Any:
        values = list(found.values())
        if any(value != values[0] for value in values):
            raise self.bad(key, f"one value in {', '.join(found)}", values)
        return values[0] if values else None

    def _number(self, key: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.bad(key, "a finite number", value)
        return float(value)


def read(path: Path) -> Reader:
    """The config in a file. Raises BadInput if there is none, or if it is not a JSON object."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"no config at {path}: expected a model's config.json") from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path}: expected UTF-8 text, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    try:
        fields = json.loads(text, object_pairs_hook=_once, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}: expected JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: expected JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadInput(f"{path}: expected a JSON object, got {type(fields).__name__}")
    nested = fields.get("text_config")
    if isinstance(nested, dict) and "kv_lora_rank" not in fields:
        return Reader(path, nested, "text_config.")
    return Reader(path, fields)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields and fields[key] != value:
            raise ValueError(f"key {key!r} is there twice, with {_short(fields[key])} and {_short(value)}")
        fields[key] = value
    return fields


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
