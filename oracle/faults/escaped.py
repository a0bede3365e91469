"""Which verdicts in use elsewhere accept a fault, as it was last measured (``escapes``)."""

from __future__ import annotations

import json

from ...fixtures import PATH

FILE = PATH / "faults" / "escapes.json"


def recorded() -> dict[str, tuple[str, ...]]:
    """Verdicts that accept a fault, by its name, from the file; a fault that is not in it has none."""
    names: dict[str, list[str]] = json.loads(FILE.read_text())["escapes"] if FILE.is_file() else {}
    return {name: tuple(verdicts) for name, verdicts in names.items()}
