"""The private memory pool of emulated graphs.

As in PyTorch's caching allocator, a block that is freed during a capture is handed out again, to the same graph or to
the next one that shares the pool, and what was kept alive is not. Addresses are fixed; a replay writes to them whoever
holds them by then.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: Blocks are rounded up to this many bytes, as PyTorch's allocator does.
_ROUND = 512
_SEGMENT = 8 * 2**20
#: What memory holds that no kernel wrote since the capture: bytes that read as NaN and as -1.
_POISON = 0xFF


@dataclass(slots=True, eq=False)
class _Segment:
    memory: Tensor
    free: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (start, size), by start."""

    def take(self, size: int) -> int | None:
        for number, (start, room) in enumerate(self.free):
            if room >= size:
                self.free[number : number + 1] = [(start + size, room - size)] if room > size else []
                return start
        return None

    def give(self, start: int, size: int) -> None:
        spans = sorted([*self.free, (start, size)])
        joined = spans[:1]
        for begin, room in spans[1:]:
            last, length = joined[-1]
            if last + length == begin:
                joined[-1] = (last, length + room)
            else:
                joined.append((begin, room))
        self.free = joined


class Pool:
    """Memory that several emulated graphs share."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self.touched: list[tuple[int, int, int]] = []
        """(segment, start, size) of every block handed out since ``touched`` was emptied."""

    def adopt(self, value: Tensor) -> Tensor:
        """A tensor of the same values, sizes and strides in the pool; its block is free again when it dies."""
        span = _span(value)
        if not span:
            return value
        size = -(-span * value.element_size() // _ROUND) * _ROUND
        number, start = self._take(size)
        segment = self._segments[number]
        block = (ctypes.c_ubyte * size).from_address(segment.memory.data_ptr() + start)
        weakref.finalize(block, segment.give, start, size).atexit = False
        self.touched.append((number, start, size))
        owned = torch.frombuffer(block, dtype=torch.uint8).view(value.dtype).as_strided(value.shape, value.stride())
        owned.copy_(value)
        return owned

    def fixed(self, tensor: Tensor) -> Tensor | None:
        """The same memory by its address alone, which keeps nothing alive; None if it is not in the pool."""
        at = tensor.data_ptr()
        for segment in self._segments:
            offset = at - segment.memory.data_ptr()
            if 0 <= offset < len(segment.memory):
                base = torch.empty(0, dtype=tensor.dtype)
                base.set_(
                    segment.memory.untyped_storage(), offset // tensor.element_size(), tensor.shape, tensor.stride()
                )
                return base
        return None

    def poison(self) -> None:
        """Forget what a capture computed, as one that never ran; only its own blocks are touched."""
        for number, start, size in self.touched:
            self._segments[number].memory[start : start + size] = _POISON
        self.touched.clear()

    def _take(self, size: int) -> tuple[int, int]:
        for number, segment in enumerate(self._segments):
            start = segment.take(size)
            if start is not None:
                return number, start
        room = max(size, _SEGMENT)
        self._segments.append(_Segment(torch.empty(room, dtype=torch.uint8), [(0, room)]))
        return self._take(size)


def _span(value: Tensor) -> int:
    """Elements from the first to the last."""
    if not value.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
