"""An incident of one operator as data: cases, a fault of the catalogue, and the checks that must see it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadInput, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """One kernel: a fault of the catalogue, the right kernel that it is planted in, or a shipped implementation."""

    name: str
    what: str
    faulty: bool
    fault: str = ""
    """Name in the catalogue; empty with an empty ``implementation``: the right simulated kernel."""
    implementation: str = ""

    def __post_init__(self) -> None:
        if self.faulty != bool(self.fault) or (self.fault and self.implementation):
            raise BadInput(f"variant {self.name!r}: expected a fault where it is faulty, and nothing beside it")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One case. ``fails``: faulty variants fail it, by every check of ``detected_by``; elsewhere they pass."""

    name: str
    case: str
    fails: bool
    detected_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.fails != bool(self.detected_by):
            raise BadInput(f"case {self.name!r}: expected detected_by where it fails and nowhere else")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorIncident:
    """A failure that one call of one operator shows."""

    name: str
    kind: str
    title: str
    story: str
    sources: tuple[str, ...]
    variants: tuple[KernelVariant, ...]
    cases: tuple[KernelCase, ...]

    def __post_init__(self) -> None:
        if not {True, False} <= {variant.faulty for variant in self.variants}:
            raise BadInput("expected a faulty variant and a cured one")

    def variant(self, name: str) -> KernelVariant:
        """Raises BadInput naming the known variants."""
        known = {variant.name: variant for variant in self.variants}
        if name not in known:
            raise unknown(f"variant of {self.name}", name, known)
        return known[name]
