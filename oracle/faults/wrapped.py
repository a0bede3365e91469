"""Faults outside a kernel's arithmetic: its inputs mangled before, its outputs altered after, its memory misread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .simulated import Kernel, simulated

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


def mangled(operator: str, change: Callable[[Inputs], Inputs], **sites: Any) -> Callable[[], Kernel]:
    """A right kernel that is handed ``change(inputs)``: what a faulty caller or pipeline stage would pass.

    ``change`` returns only what it changes.
    """

    def plant() -> Kernel:
        kernel = simulated(operator, **sites)
        return lambda **inputs: kernel(**{**inputs, **change(inputs)})

    return plant


def altered(operator: str, change: Callable[..., Outputs], **sites: Any) -> Callable[[], Kernel]:
    """A right kernel whose outputs become ``change(*outputs)``: a wrong epilogue or store."""

    def plant() -> Kernel:
        kernel = simulated(operator, **sites)
        return lambda **inputs: change(*kernel(**inputs))

    return plant


def around(operator: str, body: Callable[[Kernel, Inputs], Outputs], **sites: Any) -> Callable[[], Kernel]:
    """A function that gets the right kernel and the inputs, and returns the outputs."""

    def plant() -> Kernel:
        kernel = simulated(operator, **sites)
        return lambda **inputs: body(kernel, inputs)

    return plant


def remembering(operator: str, body: Callable[[Kernel, Inputs, dict[str, Any]], Outputs]) -> Callable[[], Kernel]:
    """As ``around``, with a dict that lives as long as the planted kernel."""

    def plant() -> Kernel:
        kernel, memory = simulated(operator), dict[str, Any]()
        return lambda **inputs: body(kernel, inputs, memory)

    return plant


def reread(
    x: Tensor, strides: tuple[int, ...] | None = None, offset: int | None = None, extra_rows: int = 0
) -> Tensor:
    """``x`` as a kernel sees it that believes other strides, another storage offset (elements) or more rows.

    Addresses wrap around inside the storage, so that a stray read stays in this process.
    """
    size = x.untyped_storage().nbytes() // x.element_size()
    start = int(x.storage_offset()) if offset is None else offset
    address = torch.full((), start, dtype=torch.int64, device=x.device)
    for axis, step in enumerate(x.stride() if strides is None else strides):
        shape = [-1 if other == axis else 1 for other in range(x.dim())]
        length = x.shape[axis] + (extra_rows if axis == 0 else 0)
        address = address + (torch.arange(length, device=x.device) * step).view(shape)
    flat = x.view(torch.uint8) if x.dtype.itemsize == 1 else x
    return flat.as_strided((size,), (1,), 0)[address % max(size, 1)].view(x.dtype)


def packed_strides(shape: torch.Size) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
