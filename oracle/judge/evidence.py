"""Evidence gathered chunk by chunk without waiting for the device: largest values, and the axes that they lie on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Peak:
    """The largest value seen so far and what stood beside it; stays on the device until asked for."""

    value: Tensor | None = None
    beside: tuple[Tensor, ...] = ()

    def update(self, values: Tensor, *beside: Tensor) -> None:
        """Take the largest of ``values`` and the entries of ``beside`` (same shape) at its place."""
        if not values.numel():
            return
        flat = values.flatten()
        place = flat.argmax()
        found = flat[place]
        entries = tuple(tensor.flatten()[place] for tensor in beside)
        if self.value is None:
            self.value, self.beside = found, entries
            return
        better = found > self.value
        self.value = torch.where(better, found, self.value)
        self.beside = tuple(torch.where(better, new, old) for new, old in zip(entries, self.beside, strict=True))

    def number(self) -> float:
        """The value; 0 if there was none. NaN counts as largest."""
        return 0.0 if self.value is None else float(self.value)


@dataclass(slots=True)
class Places:
    """Which indices of each axis were hit, and how often in all: [s], [h] and perhaps [v]."""

    axes: tuple[Tensor, ...]
    size: int
    count: Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...], device: torch.device) -> Places:
        axes = tuple(torch.zeros(extent, dtype=torch.bool, device=device) for extent in shape)
        return cls(axes, math.prod(shape), torch.zeros((), dtype=torch.int64, device=device))

    def add(self, rows: slice, hit: Tensor) -> None:
        """``hit`` [tokens,h,...] covers the query tokens ``rows`` and all of the other axes."""
        self.count += hit.sum()
        for axis, places in enumerate(self.axes):
            others = tuple(i for i in range(hit.dim()) if i != axis)
            part = places[rows] if axis == 0 else places
            part |= hit.any(dim=others)

    def any(self) -> bool:
        return bool(self.count)


@dataclass(slots=True)
class Rows:
    """Per-row sums that are compared at the end."""

    parts: list[Tensor] = field(default_factory=list)

    def add(self, values: Tensor) -> None:
        self.parts.append(values.flatten())

    def all(self) -> Tensor:
        return torch.cat(self.parts)
