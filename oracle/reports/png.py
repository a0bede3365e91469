"""A matrix of ratios as a small PNG: each cell a pixel, from white (no error) over yellow (its limit) to dark red."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

#: Ratio -> colour; what lies between is mixed, what lies beyond is the last.
_STOPS = ((0.0, (247, 247, 247)), (1.0, (253, 208, 98)), (4.0, (227, 74, 51)), (100.0, (98, 0, 24)))
#: NaN or infinite where another value is due.
_STRANGE = (120, 40, 200)


def data_uri(rows: Sequence[Sequence[float]]) -> str:
    """``data:image/png;base64,…`` of the matrix."""
    return "data:image/png;base64," + base64.b64encode(encode(rows)).decode("ascii")


def encode(rows: Sequence[Sequence[float]]) -> bytes:
    """The PNG file: 8-bit RGB, no interlace (W3C PNG, third edition, 11.2)."""
    height, width = len(rows), len(rows[0]) if rows else 0
    raw = b"".join(b"\0" + b"".join(bytes(colour(value)) for value in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def colour(ratio: float) -> tuple[int, int, int]:
    """The colour of one ratio of error to limit."""
    if not math.isfinite(ratio):
        return _STRANGE
    for (low, first), (high, second) in pairwise(_STOPS):
        if ratio <= high:
            share = max(0.0, (ratio - low) / (high - low))
            r, g, b = (round(a + (z - a) * share) for a, z in zip(first, second, strict=True))
            return r, g, b
    return _STOPS[-1][1]


def ramp() -> str:
    """The colours from 0 to the last stop as the stops of a CSS gradient, evenly spaced."""
    return ", ".join(f"rgb{colour}" for _, colour in _STOPS)
