"""An incident as data: what to set up, what to run, and what must be seen."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ...fixtures import PATH
from ...reference.routing import Mode
from ..errors import BadInput, unknown

INCIDENTS = PATH / "incidents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One state of the engine: dated rules and switches."""

    name: str
    what: str
    rules: str
    faulty: bool
    wrapper: str = "fused"
    force_mqa: bool = False
    runs_mha: bool | None = None
    """Whether the layer has an MHA branch; None: as its rules say."""
    preceded: bool = False
    """Whether the incident's preceding step runs before every prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A batch that is right even in faulty variants."""

    name: str
    before: tuple[int, ...]
    """Lengths of prompts of earlier steps, which decode in this one."""
    prompts: tuple[int, ...]
    """Lengths of the prompts that are new in this step."""
    mode: Mode
    detected_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """Prompt lengths that fail in faulty variants, both ends included, and who sees it."""

    first: int
    last: int
    detected_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preceding:
    """The step whose selections stay in the buffer: its rows, and the first position that any of them selected."""

    rows: int
    least_selected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A public failure."""

    name: str
    title: str
    sources: tuple[str, ...]
    lengths: tuple[int, ...]
    quick_lengths: tuple[int, ...]
    fails: Fails
    deployment: Mapping[str, Any]
    variants: tuple[Variant, ...]
    preceding: Preceding
    companions: tuple[Companion, ...]

    def variant(self, name: str) -> Variant:
        """Raises BadInput naming the known variants."""
        known = {variant.name: variant for variant in self.variants}
        if name not in known:
            raise unknown(f"variant of {self.name}", name, known)
        return known[name]

    def must_fail(self, variant: Variant, length: int) -> bool:
        return variant.faulty and self.fails.first <= length <= self.fails.last


def incidents() -> tuple[str, ...]:
    """Names of the shipped incidents."""
    return tuple(sorted(path.stem for path in INCIDENTS.glob("*.toml")))


def load_incident(name: str) -> Incident:
    """Raises BadInput naming the known incidents."""
    if name not in incidents():
        raise unknown("incident", name, incidents())
    return read_incident(INCIDENTS / f"{name}.toml")


def read_incident(path: Path) -> Incident:
    """Raises BadInput with file and table for unknown or missing keys."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    lists: dict[str, type] = {"variants": Variant, "companions": Companion}
    for key, kind in lists.items():
        rows = data.get(key, [])
        data[key] = tuple(_record(f"{path.name}, {key} {n}", kind, row) for n, row in enumerate(rows, 1))
    tables: dict[str, type] = {"fails": Fails, "preceding": Preceding}
    for key, kind in tables.items():
        data[key] = _record(f"{path.name}, {key}", kind, data.get(key, {}))
    incident: Incident = _record(path.name, Incident, data)
    return incident


def _record(where: str, kind: Any, data: Mapping[str, Any]) -> Any:
    known = {field.name: field for field in fields(kind)}
    extra = sorted(set(data) - set(known))
    missing = [name for name, field in known.items() if field.default is MISSING and name not in data]
    if extra or missing:
        raise BadInput(f"{where}: expected the keys {', '.join(known)}; unknown {extra}, missing {missing}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()})
