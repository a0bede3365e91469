"""Block sizes that hold a head dim: powers of two, as Triton's blocks must be."""

from __future__ import annotations


def padded(size: int) -> int:
    """Smallest power of two that holds ``size`` and that a matrix unit accepts; 0 for 0."""
    return max(16, 1 << (size - 1).bit_length()) if size else 0


def split(size: int) -> tuple[int, int]:
    """Two blocks that hold ``size`` columns with less waste than one: 192 is 128 + 64, 256 is 256 + 0."""
    main = max(16, 1 << (size.bit_length() - 1))
    return main, padded(max(0, size - main))
