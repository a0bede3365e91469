"""Random values that belong to a logical place, not to a position in a stream.

A value is a hash of (seed, tensor name, coordinates). The coordinates are logical: request, token, head, dim. So a
token keeps its value when heads, tokens or other requests are cut away, which is what makes a failing case shrinkable.

Everything is 64-bit integer arithmetic (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014) followed by at
most one rounded fp32 multiplication, so values are bit-identical on CPU and GPU and across torch versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB
_FIRST = -0x40A7B892E31B1A47
_SECOND = -0x6B2FB644ECCEEE15
#: Sum of four 16-bit uniforms: integer mean, variance (2**32 - 1) / 3.
_MEAN = 2 * 0xFFFF
_PER_STD = (3.0 / (2**32 - 1)) ** 0.5
#: Elements of one int64 temporary: 32 MiB on a CPU, 256 MiB on a GPU.
_CHUNK = {"cpu": 1 << 22, "cuda": 1 << 25}


def key(seed: int, name: str) -> int:
    """The signed 64-bit key of a named stream."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _shifted(x: Tensor, count: int) -> Tensor:
    """Logical shift right: torch's ``>>`` keeps the sign."""
    return (x >> count).bitwise_and_((1 << (64 - count)) - 1)


def _mix_(x: Tensor) -> Tensor:
    x ^= _shifted(x, 30)
    x *= _FIRST
    x ^= _shifted(x, 27)
    x *= _SECOND
    x ^= _shifted(x, 31)
    return x


def bits(stream: int, *coordinates: Tensor) -> Tensor:
    """64 random bits (int64) for every place; integer coordinates [..] broadcast against each other."""
    state: Tensor | int = stream
    for coordinate in coordinates:
        step = (coordinate.to(torch.int64) + 1) * _GOLDEN
        state = _mix_(step + state)
    assert isinstance(state, Tensor)
    return state


def normal(stream: int, *coordinates: Tensor) -> Tensor:
    """fp32 values with mean 0 and variance 1 for every place.

    A sum of four 16-bit uniforms (Irwin-Hall, n = 4): symmetric, bounded by +-3.4641, excess kurtosis -0.3. The sum
    is an exact integer; the multiplication by 1/std is the only rounding.
    """
    x = bits(stream, *coordinates)
    pairs = (x & 0x0000FFFF0000FFFF) + (x >> 16).bitwise_and_(0x0000FFFF0000FFFF)
    total = (pairs & 0xFFFFFFFF) + (pairs >> 32)
    return total.sub_(_MEAN).to(torch.float32).mul_(_PER_STD)


def uniform(stream: int, *coordinates: Tensor) -> Tensor:
    """fp32 multiples of 2**-24 in [0, 1)."""
    return _shifted(bits(stream, *coordinates), 40).to(torch.float32).mul_(2.0**-24)


def integers(stream: int, high: int | Tensor, *coordinates: Tensor) -> Tensor:
    """int64 values in [0, high), high from 1 to 2**31; 0 where ``high`` is below 1."""
    wide = _shifted(bits(stream, *coordinates), 33)
    limit = high.clamp(min=0) if isinstance(high, Tensor) else max(high, 0)
    return (wide * limit) >> 31


def signs(stream: int, *coordinates: Tensor) -> Tensor:
    """fp32 values -1 or 1."""
    return (bits(stream, *coordinates) & 2).sub_(1).to(torch.float32)


def permutation(stream: int, count: int, *rows: Tensor, device: torch.device | str | None = None) -> Tensor:
    """A permutation of 0..count-1 for every row [.., count] (int64): the order of hashed keys."""
    if rows:
        device = rows[0].device
    columns = torch.arange(count, device=device)
    keys = bits(stream, *[row.unsqueeze(-1) for row in rows], columns)
    return torch.argsort(keys, dim=-1, stable=True)


def distinct(stream: int, slots: int, lengths: Tensor, *rows: Tensor) -> Tensor:
    """Distinct members of 0..length-1 for every row: int64 [rows, slots], ascending, -1 after the last.

    A row gets ``min(slots, length)`` members, one from each of as many strata of equal width; that costs no sort over
    the keys and no rejection. Only the first and the last stratum may be narrower or wider by one.
    """
    slot = torch.arange(slots, device=lengths.device)
    length = lengths.unsqueeze(-1)
    taken = length.clamp(max=slots).clamp(min=1)
    low = slot * length // taken
    width = (slot + 1) * length // taken - low
    member = low + integers(stream, width, *[row.unsqueeze(-1) for row in rows], slot)
    return torch.where(slot < length.clamp(max=slots), member, -1)


def by_chunks(count: int, width: int, device: torch.device, work: Callable[[int, int], None]) -> None:
    """``work(start, stop)`` over 0..count, so that stop - start times ``width`` stays bounded."""
    step = max(1, _CHUNK.get(device.type, 1 << 22) // max(1, width))
    for start in range(0, count, step):
        work(start, min(count, start + step))


def fill(target: Tensor, rows: Callable[[int, int], Tensor]) -> None:
    """Write ``rows(start, stop)`` into ``target[start:stop]`` by chunks of bounded size."""

    def put(start: int, stop: int) -> None:
        target[start:stop] = cast(rows(start, stop), target.dtype)

    count = target.shape[0]
    by_chunks(count, target.numel() // max(1, count), target.device, put)


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``values`` in ``dtype``, rounded to nearest even; e4m3 saturates, as quantisers do, and keeps NaN."""
    if dtype is torch.float8_e4m3fn:
        values = values.clamp(-448.0, 448.0)
    return values.to(dtype)
