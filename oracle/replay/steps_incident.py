"""An incident of whole layers as data: steps of requests, variants of the layer, and who must see what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...reference.routing import LayerKind, Mode
from ..errors import BadInput, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsVariant:
    """One state of the engine: dated rules, and at most one thing that is wrong."""

    name: str
    what: str
    faulty: bool
    rules: str = "attnoracle"
    fault: str = ""
    """Of a layer or its builder; see ``oracle/layer/faults.py``."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """Operator to a fault of the catalogue, or to ``simulated``: the right kernel that faults are planted in."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the incident's deployment."""
    stage: int = 0
    """First layer of a second pipeline stage, which has a top-k buffer of its own; 0: one stage."""
    sends_selection: bool = False
    """Whether the first stage sends its top-k buffer to the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsScene:
    """A few steps. ``fails``: faulty variants fail in it, by what every party of ``detected_by`` sees."""

    name: str
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """Pairs (request, new tokens) of each step."""
    fails: bool
    detected_by: tuple[str, ...] = ()
    """Rules of the layer contract, ``differential``, ``memory`` or ``raised``."""
    only: tuple[str, ...] = ()
    """Faulty variants that it is played in; empty: all."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = "NONE"

    def __post_init__(self) -> None:
        if self.fails != bool(self.detected_by):
            raise BadInput(f"scene {self.name!r}: expected detected_by where it fails and nowhere else")

    def plays_in(self, variant: StepsVariant) -> bool:
        return not self.only or not variant.faulty or variant.name in self.only


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Layers and sizes that routing does not see."""

    kinds: tuple[LayerKind, ...] = ("full",)
    index_heads: int = 4
    index_dim: int = 8
    index_pages: bool = False
    """Whether the indexer's keys lie in pages of bytes, e4m3 with a scale each; else as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What is scaled down with the lengths, so that tens of tokens behave as thousands do."""

    decode_threshold: int = 2
    masked_mha: bool = False
    """Whether a table row takes masked MHA for every prefill beyond top-k, whatever the dims."""
    mask_bytes: int = 0
    """Size of the mask workspace; 0: as in the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsIncident:
    """A failure that takes a layer, or several steps of one, to be seen."""

    name: str
    kind: str
    title: str
    story: str
    sources: tuple[str, ...]
    variants: tuple[StepsVariant, ...]
    scenes: tuple[StepsScene, ...]
    deployment: Mapping[str, Any] = field(default_factory=dict)
    model: Model = field(default_factory=Model)
    scaled: Scaled = field(default_factory=Scaled)

    def __post_init__(self) -> None:
        if not {True, False} <= {variant.faulty for variant in self.variants}:
            raise BadInput("expected a faulty variant and a cured one")

    def variant(self, name: str) -> StepsVariant:
        """Raises BadInput naming the known variants."""
        known = {variant.name: variant for variant in self.variants}
        if name not in known:
            raise unknown(f"variant of {self.name}", name, known)
        return known[name]

    @property
    def cure(self) -> StepsVariant:
        """The variant whose layers give the truth: the first that is not faulty."""
        return next(variant for variant in self.variants if not variant.faulty)
