"""e4m3 (fn): one sign bit, four exponent bits of bias 7, three fraction bits, no infinity, NaN only in 7F and FF.

    exponent > 0:  +-2^(exponent - 7) (1 + fraction / 8)        exponent = 0:  +-2^-6 fraction / 8

Encoding rounds to nearest, ties to even; what is larger than 448, infinity included, becomes +-448, and NaN stays NaN.

Source: Micikevicius et al., FP8 formats for deep learning (2022), table 1; saturation as in ``cvt.rn.satfinite``.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: The largest value: code 7E.
E4M3_MAX = 448.0


def encode_e4m3(values: Tensor) -> Tensor:
    """Codes uint8 of ``values``, which go through fp32; same shape."""
    narrow = values.to(torch.float32).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return narrow.view(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """fp32 values of codes uint8 (or of a float8_e4m3fn tensor); exact, same shape."""
    if codes.element_size() != 1:
        raise ValueError(f"codes: expected one byte each, got {codes.dtype}")
    return _values(codes.device)[codes.view(torch.uint8).int()]


def _values(device: torch.device) -> Tensor:
    """The value of each of the 256 codes, fp32."""
    code = torch.arange(256, device=device)
    exponent, fraction = (code >> 3) & 15, code & 7
    significand = torch.where(exponent > 0, fraction + 8, fraction).to(torch.float32)
    size = significand * (exponent.clamp_min(1) + 117 << 23).to(torch.int32).view(torch.float32)  # 2^(exponent - 10)
    size = torch.where(code & 127 == 127, torch.nan, size)
    return torch.where(code >= 128, -size, size)
