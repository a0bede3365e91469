"""From numbers to sentences: findings, worst elements, and where the errors lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..verdict import Finding, Worst
from .evidence import Places

#: Tile sizes whose edges are looked for in the rows that err.
TILES = (16, 32, 64, 128, 256)


@dataclass(slots=True)
class Judgement:
    """What one judge found on one answer."""

    findings: list[Finding] = field(default_factory=list)
    suspicions: list[Finding] = field(default_factory=list)
    """Statistical findings too likely to condemn and too unlikely to ignore."""
    measures: dict[str, float] = field(default_factory=dict)
    worst: list[Worst] = field(default_factory=list)
    error_map: tuple[tuple[float, ...], ...] = ()
    """See ``Verdict.error_map``."""
    survivors: tuple[str, ...] = ()
    """Wrong answers that would have passed on this input: the case has no power over them."""

    def add(self, check: str, message: str, *, proved: bool = True, where: str = "") -> None:
        self.findings.append(Finding(check, message, proved, None, where))

    def statistical(self, check: str, message: str, p: float, fail: float, suspect: float, where: str = "") -> None:
        """File a statistical result under what its p-value makes it.

        Raises ArithmeticError for a p-value that is none: a verdict that cannot be computed is no verdict.
        """
        if not 0.0 <= p <= 1.0:
            raise ArithmeticError(f"check {check!r}: the p-value came out as {p}")
        if p <= fail:
            self.findings.append(Finding(check, message, False, p, where))
        elif p <= suspect:
            self.suspicions.append(Finding(check, message, False, p, where))


def where(bad: Tensor, names: tuple[str, ...]) -> str:
    """Where a boolean tensor is set, axis by axis, in words: which heads, rows, columns, which period."""
    places = Places.of(tuple(bad.shape), bad.device)
    places.add(slice(0, bad.shape[0]), bad)
    return spelled(places, names)


def spelled(places: Places, names: tuple[str, ...]) -> str:
    """The same from what was gathered axis by axis."""
    if not places.any():
        return ""
    parts = [f"{int(places.count)} of {places.size} elements"]
    for axis, name in zip(places.axes, names, strict=True):
        parts.append(f"{name} {_spans(axis.nonzero().flatten().tolist(), len(axis))}")
    return "; ".join(parts)


def _spans(places: list[int], size: int) -> str:
    if len(places) == size:
        return "all"
    period = _period(places, size)
    if period:
        return period
    spans: list[str] = []
    start = previous = places[0]
    for place in [*places[1:], -1]:
        if place != previous + 1:
            spans.append(str(start) if start == previous else f"{start}-{previous}")
            start = place
        previous = place
    shown = ",".join(spans[:6])
    return f"{shown},… ({len(places)} of {size})" if len(spans) > 6 else shown


def _period(places: list[int], size: int) -> str:
    """'= 127 mod 128' when that names exactly these places and there are at least three."""
    if len(places) < 3:
        return ""
    for tile in TILES:
        residue = places[0] % tile
        if tile < size and all(p % tile == residue for p in places) and len(places) == len(range(residue, size, tile)):
            return f"= {residue} mod {tile}"
    return ""


def mask_mismatch(observed: Tensor, expected: Tensor) -> Tensor:
    """Where one is NaN or infinite and the other is not the same."""
    same = (observed == expected) | (torch.isnan(observed) & torch.isnan(expected))
    special = ~torch.isfinite(observed) | ~torch.isfinite(expected)
    return special & ~same
