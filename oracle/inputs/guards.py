"""Guard bytes around and between the payload of a tensor.

Guard bytes are A5 7F repeated. Read as bf16, fp16 or fp32 they are NaN, with a payload that no arithmetic produces; as
int32 or int64 they are an index far out of range. So a read that strays shows in the answer, and a write that strays
shows in the bytes, even if it writes NaN, zero or -1. e4m3 has only the NaN codes 7F and FF: its guards alternate the
two, so a stray single byte that happens to equal the guard there goes unseen; two neighbours of one value do not.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

#: Bytes of the red zone before a tensor; a multiple of the 512 bytes that allocators align to.
BEFORE = 4096
#: Bytes of the red zone after it, at least.
AFTER = 8192

_GUARD = 0x7FA5
_GUARD_E4M3 = -0x81  # bytes 7F FF
_CHUNK = 1 << 24


def _word(dtype: torch.dtype) -> int:
    """The guard of a tensor of ``dtype``, as a signed 16-bit integer."""
    return _GUARD_E4M3 if dtype is torch.float8_e4m3fn else _GUARD


def guarded_buffer(payload: int, dtype: torch.dtype, device: torch.device, shift: int = 0) -> tuple[Tensor, int]:
    """A uint8 buffer of guard bytes with room for ``payload`` bytes, and where in it the payload begins.

    The payload begins ``shift`` bytes (even) past a multiple of 512 from the start of the buffer.
    """
    total = -(-(BEFORE + shift + payload + AFTER) // 8) * 8
    words = torch.full((total // 2,), _word(dtype), dtype=torch.int16, device=device)
    return words.view(torch.uint8), BEFORE + shift


def sparse_buffer(payload: int, dtype: torch.dtype, untouched: int, shift: int = 0) -> tuple[Tensor, int]:
    """As ``guarded_buffer`` on the CPU, but the first ``untouched`` bytes (even) of the payload cost no memory.

    They are private anonymous pages that nothing writes: zeros when read, for as long as nobody strays into them.
    """
    begin = BEFORE + shift
    total = -(-(begin + payload + AFTER) // 8) * 8
    pages = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer = torch.frombuffer(pages, dtype=torch.uint8)
    words = buffer.view(torch.int16)
    words[: begin // 2] = _word(dtype)
    words[(begin + untouched) // 2 :] = _word(dtype)
    return buffer, begin


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor inside a larger buffer whose remaining bytes are guards."""

    name: str
    tensor: Tensor
    buffer: Tensor
    """uint8 [..]: all bytes, guards included."""
    begin: int
    """First payload byte in the buffer."""
    payload: int
    """Bytes from the first to the last element, gaps included."""
    block: tuple[int, ...] | None = None
    """Shape of the contiguous block that the tensor is the first corner of; what is left of it is guarded too."""
    untouched: int = 0
    """First rows of the block that are no memory yet (see ``sparse_buffer``) and must not be read: no guards there."""

    @property
    def taken(self) -> bool:
        """Whether somebody shrank the storage: then there is nothing left to read."""
        return self.buffer.untyped_storage().nbytes() < self.buffer.numel()

    def damage(self) -> list[str]:
        """Where guard bytes changed, in words; empty if none did. Offsets count from the start of the tensor."""
        if self.taken:
            return [f"{self.name}: its memory was resized to {self.buffer.untyped_storage().nbytes()} bytes"]
        end = self.begin + self.payload
        zones = {"before the tensor": (0, self.begin), "after the tensor": (end, self.buffer.numel())}
        found = []
        for place, (start, stop) in zones.items():
            wrong = self.buffer[start:stop] != self._pattern(start, stop)
            found += self._tell(place, wrong, start - self.begin)
        for wrong, start in self._gaps():
            found += self._tell("in the gaps between its rows", wrong, start)
        return found

    def _tell(self, place: str, wrong: Tensor, start: int) -> list[str]:
        if not bool(wrong.any()):
            return []
        hit = torch.nonzero(wrong.flatten()).flatten()
        first, last = int(hit[0]) + start, int(hit[-1]) + start
        return [f"{self.name}: {hit.numel()} guard byte(s) {place} overwritten, at byte offsets {first} to {last}"]

    def _pattern(self, start: int, stop: int) -> Tensor:
        count = (stop - start) // 2 + 2
        words = torch.full((count,), _word(self.tensor.dtype), dtype=torch.int16, device=self.buffer.device)
        return words.view(torch.uint8)[start % 2 : start % 2 + stop - start]

    def _gaps(self) -> Iterator[tuple[Tensor, int]]:
        """Damage inside the block by chunks of rows: (where, byte offset of the chunk)."""
        shape, size = self.tensor.shape, self.tensor.element_size()
        if self.block is None or self.block == tuple(shape) or self.payload == 0:
            return
        rows = self.buffer[self.begin : self.begin + self.payload].view(*self.block[:-1], self.block[-1] * size)
        pattern, row_bytes = self._pattern(0, rows.shape[-1]), prod(rows.shape[1:])
        step = max(1, _CHUNK // row_bytes)
        for start in range(self.untouched, rows.shape[0], step):
            wrong = rows[start : start + step] != pattern
            inner = wrong[(slice(None), *(slice(0, extent) for extent in shape[1:-1]), slice(0, shape[-1] * size))]
            inner.fill_(False)
            yield wrong, start * row_bytes

    def fingerprint(self) -> int:
        """A 64-bit sum over all bytes, guards included; any change within one 8-byte word changes it.

        Of a sparse buffer the untouched bytes are left out, but for the words that the others begin or end in.
        """
        if self.taken:
            return -1
        words = self.buffer.view(torch.int64)
        total = torch.zeros((), dtype=torch.int64, device=words.device)
        for begin, stop in self._touched_words():
            for start in range(begin, stop, _CHUNK):
                part = words[start : min(start + _CHUNK, stop)]
                weights = torch.arange(start, start + part.numel(), device=part.device).mul_(-0x61C8864680B583EB)
                total += (part * weights.bitwise_or_(1)).sum()
        return int(total) & (2**64 - 1)

    def _touched_words(self) -> tuple[tuple[int, int], ...]:
        """Ranges of 8-byte words of the buffer that are memory."""
        words = self.buffer.numel() // 8
        if not self.untouched:
            return ((0, words),)
        row_bytes = self.payload // (self.block or self.tensor.shape)[0]
        return (0, -(-self.begin // 8)), ((self.begin + self.untouched * row_bytes) // 8, words)
