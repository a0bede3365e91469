"""``fp8_e4m3``: a cache of e4m3 codes with one scale for all of them.

    value = code * k_scale          code = e4m3(value / k_scale)

A row holds latent and rotated dims alike. Products and quotients are fp32, rounded to nearest.

Source: vLLM 0.33.0 ``concat_and_cache_mla`` with kv_cache_dtype fp8_e4m3.

Shapes:
    values: [..., w]    codes: uint8 [..., w]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .float8 import decode_e4m3, encode_e4m3
from .scales import require_scale


def encode_plain_rows(values: Tensor, *, k_scale: float) -> Tensor:
    """Codes uint8; saturated. Raises ValueError for a scale that is none."""
    require_scale("k_scale", k_scale)
    return encode_e4m3(values.to(torch.float32) / torch.full((), k_scale, dtype=torch.float32, device=values.device))


def decode_plain_rows(codes: Tensor, *, k_scale: float) -> Tensor:
    """fp32 values. Raises ValueError for a scale that is none."""
    require_scale("k_scale", k_scale)
    return decode_e4m3(codes) * torch.full((), k_scale, dtype=torch.float32, device=codes.device)
