"""Evidence gathered chunk by chunk without waiting for the device: largest values, and the axes that they lie on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Peak:
    """The largest value of every chunk and what stood beside it; stays on the device until asked for."""

    values: list[Tensor] = field(default_factory=list)
    beside: list[tuple[Tensor, ...]] = field(default_factory=list)

    def update(self, values: Tensor, *beside: Tensor) -> None:
        """Take the largest of ``values`` and the entries of ``beside`` (same shape) at its place."""
        if not values.numel():
            return
        flat = values.flatten()
        place = flat.argmax().view(1)
        # Not flat[place]: indexing with a scalar waits for the device and keeps the whole tensor alive in a view.
        self.values.append(flat.index_select(0, place))
        self.beside.append(tuple(tensor.expand_as(values).flatten().index_select(0, place) for tensor in beside))

    def number(self) -> float:
        """The largest value; 0 if there was none. NaN counts as largest."""
        return float(torch.cat(self.values).max()) if self.values else 0.0

    def entries(self) -> list[float]:
        """What stood beside the largest value."""
        place = int(torch.cat(self.values).argmax())
        return [float(entry) for entry in self.beside[place]]


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
    """Values a row, [tokens,h] a chunk in the order of the tokens."""

    parts: list[Tensor] = field(default_factory=list)

    def add(self, values: Tensor) -> None:
        self.parts.append(values)

    def all(self) -> Tensor:
        """[s,h]"""
        return torch.cat(self.parts)
