"""Tables of a TOML file as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ..errors import BadInput


def record(where: str, kind: Any, data: Mapping[str, Any]) -> Any:
    """A record of ``kind``; lists become tuples. Raises BadInput with place and keys for unknown or missing ones."""
    known = {field.name: field for field in fields(kind)}
    extra = sorted(set(data) - set(known))
    missing = [
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING and name not in data
    ]
    if extra or missing:
        raise BadInput(f"{where}: expected the keys {', '.join(known)}; unknown {extra}, missing {missing}")
    try:
        return kind(**{key: frozen(value) for key, value in data.items()})
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}: {error}") from error


def frozen(value: Any) -> Any:
    """Lists, and lists in lists, as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def filled(name: str, data: dict[str, Any], *, lists: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with its arrays of tables and its tables as records."""
    for key, kind in lists.items():
        rows = data.get(key, [])
        data[key] = tuple(record(f"{name}, {key} {n}", kind, row) for n, row in enumerate(rows, 1))
    for key, kind in tables.items():
        data[key] = record(f"{name}, {key}", kind, data.get(key, {}))
    return data
