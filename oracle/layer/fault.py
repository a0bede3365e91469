"""A planted fault of a layer, or of the builder that tells it about a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...reference.layer import Parts, SparseMLALayer, StepMetadata
from .contract import LayerUnderTest

#: What a builder tells the layers instead of what it should.
Alter = Callable[[StepMetadata], StepMetadata]


def _honest() -> Alter:
    return lambda metadata: metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFault:
    """One fault, and the rules of the contract of which at least one must see it."""

    name: str
    source: str
    """A public report, or the mechanism that the fault stands for."""
    rules: tuple[str, ...]
    make: Callable[[Parts], LayerUnderTest] = SparseMLALayer
    alter: Callable[[], Alter] = _honest
    """Makes the faulty builder of one run; it may remember earlier steps."""
