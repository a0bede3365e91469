"""The inputs of one call, in one layout, between red zones."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..errors import BadInput
from .guards import Guarded, guarded_buffer, sparse_buffer

#: Extra bytes before the payload in layout ``offset``: aligned to 16 bytes, as kernels demand, and to no more.
SHIFT = 16


class Arena:
    """Allocates the tensors of one call in one layout.

    ``contiguous``: dense, aligned to 512 bytes. ``offset``: dense, starting 16 bytes further: kernels may demand
    16-byte alignment, not more. ``strided``: rows (and heads) are longer than their payload; every row starts at a
    multiple of 16 bytes, and the innermost stride is 1. One-dimensional tensors are always dense.
    """

    def __init__(self, layout: str, device: torch.device | str) -> None:
        if layout not in ("contiguous", "offset", "strided"):
            raise BadInput(f"layout {layout!r}: expected contiguous, offset or strided")
        self.layout = layout
        self.device = torch.device(device)
        self.tensors: dict[str, Guarded] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor that still holds guard bytes; every element is to be written."""
        block = self._block(shape, dtype.itemsize)
        payload = prod(block) * dtype.itemsize
        buffer, begin = guarded_buffer(payload, dtype, self.device, SHIFT if self.layout == "offset" else 0)
        whole = buffer[begin : begin + payload].view(dtype).view(block)
        tensor = whole[tuple(slice(0, extent) for extent in shape)]
        self.tensors[name] = Guarded(name, tensor, buffer, begin, payload, block)
        return tensor

    def allocate_far(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, untouched: int) -> Tensor:
        """As ``allocate`` on the CPU, where the first ``untouched`` rows cost nothing: they are not to be written."""
        block = self._block(shape, dtype.itemsize)
        row_bytes = prod(block[1:]) * dtype.itemsize
        payload, shift = block[0] * row_bytes, SHIFT if self.layout == "offset" else 0
        buffer, begin = sparse_buffer(payload, dtype, untouched * row_bytes, shift)
        whole = buffer[begin : begin + payload].view(dtype).view(block)
        tensor = whole[tuple(slice(0, extent) for extent in shape)]
        self.tensors[name] = Guarded(name, tensor, buffer, begin, payload, block, untouched)
        return tensor

    def place(self, name: str, values: Tensor) -> Tensor:
        """A guarded copy of ``values``."""
        return self.allocate(name, tuple(values.shape), values.dtype).copy_(values)

    def _block(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        if self.layout != "strided" or len(shape) < 2:
            return shape
        quantum = 16 // size
        inner = -(-shape[-1] // quantum) * quantum + quantum
        return (shape[0], *(extent + 1 for extent in shape[1:-1]), inner)
