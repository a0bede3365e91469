"""Incidents as data: what to set up, what to run, and what must be seen.

Three kinds of file: ``prompts`` (the default: a model reads prompts, and its words are right or wrong), ``steps``
(layers run a few steps of requests), ``operator`` (one operator is judged on cases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...fixtures import PATH
from ...reference.routing import Mode
from ..errors import unknown
from ..toml_file import read_toml
from .operator_incident import KernelCase, KernelVariant, OperatorIncident
from .records import filled, record
from .steps_incident import Model, Scaled, StepsIncident, StepsScene, StepsVariant

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
    quick: bool = True
    """Whether the quick form plays it."""


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
    kind: str = "prompts"

    def variant(self, name: str) -> Variant:
        """Raises BadInput naming the known variants."""
        known = {variant.name: variant for variant in self.variants}
        if name not in known:
            raise unknown(f"variant of {self.name}", name, known)
        return known[name]

    def must_fail(self, variant: Variant, length: int) -> bool:
        return variant.faulty and self.fails.first <= length <= self.fails.last


AnyIncident = Incident | StepsIncident | OperatorIncident


def incidents() -> tuple[str, ...]:
    """Names of the shipped incidents."""
    return tuple(sorted(path.stem for path in INCIDENTS.glob("*.toml")))


def load_incident(name: str) -> AnyIncident:
    """Raises BadInput naming the known incidents."""
    if name not in incidents():
        raise unknown("incident", name, incidents())
    return read_incident(INCIDENTS / f"{name}.toml")


def read_incident(path: Path) -> AnyIncident:
    """Raises BadInput with file and table for unknown or missing keys."""
    data = read_toml(path, f"{path}", "a TOML file of an incident")
    kind = data.setdefault("kind", "prompts")
    if kind not in _KINDS:
        raise unknown(f"kind of incident in {path.name}", str(kind), _KINDS)
    whole, lists, tables = _KINDS[kind]
    incident: AnyIncident = record(path.name, whole, filled(path.name, data, lists=lists, tables=tables))
    return incident


_KINDS: Mapping[str, tuple[Any, Mapping[str, Any], Mapping[str, Any]]] = {
    "prompts": (
        Incident,
        {"variants": Variant, "companions": Companion},
        {"fails": Fails, "preceding": Preceding},
    ),
    "steps": (
        StepsIncident,
        {"variants": StepsVariant, "scenes": StepsScene},
        {"model": Model, "scaled": Scaled},
    ),
    "operator": (OperatorIncident, {"variants": KernelVariant, "cases": KernelCase}, {}),
}
