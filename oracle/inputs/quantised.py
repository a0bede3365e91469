"""Values that quantisers are given, and stored codes and scales that readers are given.

Values are drawn block by block, since a block shares a scale: a power of two times an odd multiple of 1/8, so that on
``edges`` quotients fall on and beside the midpoints between codes in bf16 as in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import rng
from .batch import Tokens

#: Spacing of the format above 1: the smallest step that a value beside an edge can be off.
ULP = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-23}
#: Largest values of a block over 448 times a power of two; 3/4 is the 336 of vllm#49435.
_SHARES = (1.0, 0.75, 0.625, 0.875)
_E4M3_MAX = 448.0


def values(kind: str, role: str, seed: int, tokens: Tokens, width: int, block: int, dtype: torch.dtype) -> Tensor:
    """fp32 [m, width] in blocks of ``block``; exact in ``dtype`` on ``edges``."""
    dims = torch.arange(width, device=tokens.name.device)
    row = (tokens.name[:, None], tokens.position[:, None])
    place, in_block = (*row, dims), (*row, dims // block)
    stream = rng.key(seed, role)
    z = rng.normal(stream, *place)
    power = rng.integers(rng.key(seed, f"{role}-power"), 13, *in_block) - 8
    if kind == "tiny":
        power = power - 22
    if kind == "spread":
        power = power * 12 + 24  # from -72 to 72
    if kind == "large":
        power = power * 5 + 100  # from 60 to 120
    if kind == "edges":
        return _edges(seed, role, place, in_block, dims % block, power, dtype)
    drawn = z * _power(power)
    choice = rng.integers(rng.key(seed, f"{role}-choice"), 4, *in_block)
    if kind == "zeros":
        sign = rng.signs(stream, *place)
        return torch.where(choice < 2, sign * 0.0, drawn)
    if kind == "nonfinite":
        special = rng.integers(rng.key(seed, f"{role}-special"), 48, *place)
        table = torch.tensor([torch.nan, torch.inf, -torch.inf], device=z.device)
        return torch.where((special < 3) & (choice < 3), table[special.clamp(max=2)], drawn)
    return drawn


def _edges(
    seed: int,
    role: str,
    place: tuple[Tensor, ...],
    in_block: tuple[Tensor, ...],
    lane: Tensor,
    power: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Lane 0 of a block is its largest value, 448 times a share, or a neighbour of it; others sit at midpoints."""
    device = lane.device
    share = torch.tensor(_SHARES, device=device)[rng.integers(rng.key(seed, f"{role}-share"), 4, *in_block)]
    # Odd multiples of 1/16 in [1, 2) lie half way between two codes of three fraction bits.
    middle = 1 + (2 * rng.integers(rng.key(seed, f"{role}-middle"), 8, *place) + 1).float() / 16
    scaled = middle * _power(rng.integers(rng.key(seed, f"{role}-place"), 12, *place) - 5)
    beside = 1 + (rng.integers(rng.key(seed, f"{role}-beside"), 3, *place) - 1).float() * ULP[dtype]
    sign = rng.signs(rng.key(seed, role), *place)
    largest = 1 + (rng.integers(rng.key(seed, f"{role}-largest"), 3, *in_block) - 1).float() * ULP[dtype]
    drawn = sign * torch.where(lane == 0, largest * _E4M3_MAX, beside * scaled)
    return drawn * share * _power(power)


def _power(exponent: Tensor) -> Tensor:
    return (exponent + 127 << 23).to(torch.int32).view(torch.float32)


def codes(kind: str, role: str, seed: int, tokens: Tokens, width: int) -> Tensor:
    """Stored codes uint8 [m, width]: any but NaN, and NaN among them in kind ``codes``."""
    dims = torch.arange(width, device=tokens.name.device)
    drawn = rng.integers(rng.key(seed, role), 256, tokens.name[:, None], tokens.position[:, None], dims)
    if kind != "codes":
        drawn = torch.where(drawn & 127 == 127, drawn - 1, drawn)
    return drawn.to(torch.uint8)


def scales(kind: str, role: str, seed: int, tokens: Tokens, count: int) -> Tensor:
    """Stored scales fp32 [m, count]: powers of two in ``pow2``, seldom one elsewhere."""
    number = torch.arange(count, device=tokens.name.device)
    place = (tokens.name[:, None], tokens.position[:, None], number)
    spread = 40 if kind == "wide" else 6
    power = _power(rng.integers(rng.key(seed, f"{role}-power"), 2 * spread + 1, *place) - spread)
    drawn = power if kind == "pow2" else power * (1 + rng.uniform(rng.key(seed, role), *place))
    return torch.empty(drawn.shape, device=drawn.device).copy_(drawn)  # of plain strides even where there is nothing


def filler(name: str, seed: int, number: Tensor, width: int) -> Tensor:
    """Bytes uint8 [m, width] of what nobody may use: all ones (NaN in every format), 448s, or plausible bytes."""
    if name == "nan":
        return torch.full((len(number), width), 0xFF, dtype=torch.uint8, device=number.device)
    if name == "huge":
        return torch.full((len(number), width), 0x7E, dtype=torch.uint8, device=number.device)
    column = torch.arange(width, device=number.device)
    return rng.integers(rng.key(seed, "filler"), 256, number[:, None], column).to(torch.uint8)
