"""Files in TOML that people write: contracts, ledgers, rules, incidents, grids."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from .errors import BadInput


def read_toml(path: Path, place: str, expected: str = "TOML") -> dict[str, Any]:
    """The file's table. Raises BadInput that names the place, such as ``--known FILE``, and what it should hold."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{place}: cannot be read: {error.strerror}; expected {expected}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{place}: expected {expected}: {error}") from None
