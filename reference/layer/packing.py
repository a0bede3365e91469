"""Plain e4m3 with one scale, as packed queries and plain e4m3 caches hold numbers: value = code * scale."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import E4M3_MAX


def pack_e4m3(values: Tensor, scale: float) -> Tensor:
    """Codes float8_e4m3fn of values / scale, rounded to nearest, saturating; the quotient is in the values' dtype."""
    divisor = torch.full((), scale, dtype=values.dtype, device=values.device)  # a number's reciprocal is rounded
    return (values / divisor).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
