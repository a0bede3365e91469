"""Spacing of number formats."""

from __future__ import annotations

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Format

TORCH_DTYPE: dict[Format, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
#: Smallest normal number of each format.
SMALLEST_NORMAL = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "tf32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-14}
SMALLEST_NORMAL |= {"e4m3": 2.0**-6, "e5m2": 2.0**-14}
#: Bits of fp32's mantissa that formats without a torch dtype lack.
_DROPPED: dict[Format, int] = {"tf32": 13, "fp22": 10}
#: Smallest positive number of the formats whose range P can leave.
SMALLEST_SUBNORMAL = {"fp16": 2.0**-24, "e4m3": 2.0**-9, "e5m2": 2.0**-16}


def half_ulp(magnitude: Tensor, fmt: str) -> Tensor:
    """Half the distance between neighbouring numbers of ``fmt`` at ``magnitude`` (>= 0), fp64."""
    _, exponent = torch.frexp(magnitude.clamp_min(SMALLEST_NORMAL[fmt]))
    return torch.ldexp(torch.full_like(magnitude, UNIT_ROUNDOFF[fmt]), exponent - 1)


def rounded(value: Tensor, fmt: Format) -> Tensor:
    """``value`` rounded to nearest in ``fmt``, as fp64."""
    if fmt == "fp64":
        return value
    if fmt in _DROPPED:
        wide, drop = value.to(torch.float32), _DROPPED[fmt]
        bits = wide.view(torch.int32)
        kept = (bits + (1 << (drop - 1)) - 1 + ((bits >> drop) & 1)) & -(1 << drop)
        return torch.where(wide.isfinite(), kept.view(torch.float32), wide).to(torch.float64)
    return value.to(TORCH_DTYPE[fmt]).to(torch.float64)


def format_of(dtype: torch.dtype) -> Format:
    """Name of a torch dtype in contracts and cases."""
    for name, candidate in TORCH_DTYPE.items():
        if candidate is dtype:
            return name
    raise ValueError(f"dtype: expected one of {sorted(TORCH_DTYPE)}, got {dtype}")
