"""Memory that tells on a kernel: red zones around every tensor, gaps between its rows, poison in what it allocates.

Guard bytes are A5 7F repeated. Read as bf16, fp16 or fp32 they are NaN, with a payload that no arithmetic produces; as
int32 or int64 they are an index far out of range. So a read that strays shows in the answer, and a write that strays
shows in the bytes, even if it writes NaN, zero or -1. e4m3 has only the NaN codes 7F and FF: its guards alternate the two,
so a stray single byte that happens to equal the guard there goes unseen; any two neighbours do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .errors import BadInput

#: Red zone before the payload: keeps the alignment (512 bytes) that allocators give.
BEFORE = 4096
#: Red zone after it, at least.
AFTER = 8192
#: Extra bytes before the payload in layout ``offset``: aligned to 16 bytes, as kernels demand, and to no more.
SHIFT = 16

_GUARD = 0x7FA5
_GUARD_E4M3 = -0x81  # bytes 7F FF
_CHUNK = 1 << 24


def guard_word(dtype: torch.dtype) -> int:
    """The guard of a tensor of ``dtype``, as a signed 16-bit integer."""
    return _GUARD_E4M3 if dtype is torch.float8_e4m3fn else _GUARD


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor inside a larger buffer whose remaining bytes are guards."""

    name: str
    tensor: Tensor
    buffer: Tensor
    """int16 [..]: all bytes, guards included."""
    begin: int
    """First payload byte in the buffer."""
    block: tuple[int, ...]
    """Shape of the contiguous block that the tensor is the upper left corner of."""

    def damage(self) -> list[str]:
        """Where guard bytes changed, in words; empty if none did."""
        size = self.tensor.element_size()
        end = self.begin + prod(self.block) * size
        data = self.buffer.view(torch.uint8)
        found = []
        for place, part, origin in (("before", data[: self.begin], self.begin), ("after", data[end:], 0)):
            hit = self._first(part, (0 if place == "before" else end) % 2)
            if hit is not None:
                first, last, count = hit
                where = f"{origin - last} to {origin - first} bytes before the start" if place == "before" else (
                    f"{first} to {last} bytes after the end"
                )
                found.append(f"{self.name}: {count} guard byte(s) {place} the tensor overwritten, {where}")
        for offset, count in self._gaps(data[self.begin : end]):
            found.append(
                f"{self.name}: {count} guard byte(s) in the gap between rows overwritten, first at byte {offset} "
                "of the tensor"
            )
        return found

    def _first(self, part: Tensor, phase: int) -> tuple[int, int, int] | None:
        wrong = torch.nonzero(part != self._pattern(part.numel(), phase)).flatten()
        if wrong.numel() == 0:
            return None
        return int(wrong[0]), int(wrong[-1]), wrong.numel()

    def _pattern(self, count: int, phase: int = 0) -> Tensor:
        word = torch.full((count // 2 + 2,), guard_word(self.tensor.dtype), dtype=torch.int16, device=self.buffer.device)
        return word.view(torch.uint8)[phase : phase + count]

    def _gaps(self, payload: Tensor) -> Iterator[tuple[int, int]]:
        """(first byte, how many) of the damage inside the block; at most one."""
        shape, size = self.tensor.shape, self.tensor.element_size()
        if self.block == tuple(shape):
            return
        rows = payload.view(*self.block[:-1], self.block[-1] * size)
        row = self._pattern(rows.shape[-1])
        step = max(1, _CHUNK // max(1, prod(rows.shape[1:])))
        for start in range(0, rows.shape[0], step):
            wrong = rows[start : start + step] != row
            inner = wrong[..., : shape[-1] * size]
            (inner[:, : shape[1]] if len(shape) == 3 else inner).fill_(False)
            places = torch.nonzero(wrong.flatten()).flatten()
            if places.numel():
                yield start * prod(rows.shape[1:]) + int(places[0]), places.numel()
                return

    def fingerprint(self) -> int:
        """A 64-bit sum over all bytes, guards included; any change of one 8-byte word changes it."""
        words = self.buffer.view(torch.int64)
        total = 0
        for start in range(0, words.numel(), _CHUNK):
            part = words[start : start + _CHUNK]
            weights = torch.arange(start, start + part.numel(), device=part.device).mul_(-0x61C8864680B583EB)
            total += int((part * weights.bitwise_or_(1)).sum())
        return total & (2**64 - 1)


class Arena:
    """Allocates the tensors of one call in one layout.

    ``contiguous``: dense. ``offset``: dense, starting 16 bytes past an aligned address. ``strided``: rows (and heads)
    are longer than their payload by a multiple of 16 bytes; the innermost stride is always 1, and a row always starts at
    a multiple of 16 bytes from the start.
    """

    def __init__(self, layout: str, device: torch.device | str) -> None:
        if layout not in ("contiguous", "offset", "strided"):
            raise BadInput(f"layout {layout!r}: expected contiguous, offset or strided")
        self.layout = layout
        self.device = torch.device(device)
        self.tensors: dict[str, Guarded] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor whose payload still holds guard bytes; every element is to be written."""
        size = dtype.itemsize
        block = self._block(shape, size)
        begin = BEFORE + (SHIFT if self.layout == "offset" else 0)
        total = begin + -(-prod(block) * size // 512) * 512 + AFTER - begin % 8
        buffer = torch.full((-(-total // 8) * 4,), guard_word(dtype), dtype=torch.int16, device=self.device)
        payload = buffer.view(torch.uint8)[begin : begin + prod(block) * size].view(dtype).view(block)
        tensor = payload[tuple(slice(0, extent) for extent in shape)]
        self.tensors[name] = Guarded(name, tensor, buffer, begin, block)
        return tensor

    def place(self, name: str, values: Tensor) -> Tensor:
        """A guarded copy of ``values``."""
        tensor = self.allocate(name, tuple(values.shape), values.dtype)
        return tensor.copy_(values)

    def _block(self, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
        if self.layout != "strided" or len(shape) < 2:
            return shape
        quantum = 16 // size
        inner = -(-shape[-1] // quantum) * quantum + quantum
        return (shape[0], *(extent + 1 for extent in shape[1:-1]), inner)
