"""Quantisation to e4m3 in plain torch: the scale by arithmetic on its bits, the codes by torch's own conversion."""

from __future__ import annotations

import torch
from torch import Tensor

_MAX = 448.0
_FRACTION = (1 << 23) - 1


def quantize(
    x: Tensor, *, block: int, scale_format: str = "pow2", least_amax: float = 0.0, least_scale: float = 0.0
) -> tuple[Tensor, Tensor]:
    """x [s,w] -> codes float8_e4m3fn [s,w], scales [s,w/block], fp32 or, for ue8m0, exponent bytes uint8.

    Raises ValueError for a block that does not divide the row and for a rule without a floor.
    """
    check_rule(scale_format, least_amax, least_scale, ("fp32", "pow2", "ue8m0"))
    rows, width = x.shape
    if block < 1 or width % block:
        raise ValueError(f"block: expected a divisor of {width}, got {block}")
    tiles = x.float().reshape(rows, width // block, block)
    scale = scales(tiles, scale_format, least_amax, least_scale)
    codes = codes_of(tiles / scale.unsqueeze(-1)).reshape(rows, width)
    return codes, (scale.view(torch.int32) >> 23).to(torch.uint8) if scale_format == "ue8m0" else scale


def scales(tiles: Tensor, scale_format: str, least_amax: float, least_scale: float) -> Tensor:
    """fp32 scales of the last axis of fp32 tiles, contiguous; NaN and infinities take no part."""
    sizes = tiles.abs()
    amax = sizes.masked_fill(~sizes.isfinite(), 0.0).amax(-1)
    # A division by a number is a product with its rounded reciprocal on a GPU; by a tensor it is a division.
    largest = torch.full((), _MAX, device=tiles.device)
    scale = torch.clamp_min(torch.clamp_min(amax, least_amax) / largest, least_scale)
    if scale_format == "fp32":
        return scale
    bits = scale.view(torch.int32)
    return ((bits + _FRACTION) & ~_FRACTION).view(torch.float32)


def codes_of(quotient: Tensor) -> Tensor:
    """e4m3 codes, saturated: earlier torch makes NaN of what is too large."""
    return quotient.clamp(-_MAX, _MAX).to(torch.float8_e4m3fn)


def check_rule(scale_format: str, least_amax: float, least_scale: float, formats: tuple[str, ...]) -> None:
    """Raises ValueError for another format, and where a block of zeros would have no scale."""
    if scale_format not in formats:
        raise ValueError(f"scale_format: expected one of {', '.join(formats)}, got {scale_format!r}")
    if min(least_amax, least_scale) < 0 or not 2.0**-126 <= max(least_amax / _MAX, least_scale) < 2.0**128:
        raise ValueError(f"least_amax, least_scale: expected a positive floor, got {least_amax} and {least_scale}")


def check_scale(name: str, value: float) -> None:
    if not 2.0**-126 <= value < 2.0**128:
        raise ValueError(f"{name}: expected a positive finite number, got {value}")
