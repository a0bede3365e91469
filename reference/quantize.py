"""Quantisation to e4m3 by blocks of a row.

    codes[s,w] = e4m3(x[s,w] / scale of its block)        scales as in ``layouts.scales``

The quotient is fp32, rounded to nearest; a kernel that multiplies by 1 / scale gives other codes unless the scale is a
power of two. NaN and infinities take no part in a scale: NaN keeps a NaN code, an infinity becomes +-448, and their
neighbours are what they would be without them.

Source: vLLM 0.33.0 ``per_token_group_quant_fp8`` and the indexer's quantisers; DeepSeek-V3.2-Exp ``act_quant``.

Shapes:
    x: [s, w]    codes: float8_e4m3fn [s, w]    scales: fp32 or, for ue8m0, uint8 [s, w / block]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes
from .layouts import ScaleRule, block_scales, encode_e4m3, encode_ue8m0


def quantize(
    x: Tensor, *, block: int, scale_format: str = "pow2", least_amax: float = 0.0, least_scale: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Codes and scales; ``scale_format`` is fp32, pow2 or ue8m0 (the same power of two, stored as its exponent).

    Raises ValueError for rows that are no whole number of blocks, and for a rule that gives a block of zeros no scale.
    """
    sizes = bind_sizes(("x", x, "s w"))
    if block < 1 or sizes["w"] % block:
        raise ValueError(f"block: expected a positive divisor of the row, {sizes['w']}, got {block}")
    rule = ScaleRule(scale_format, least_amax, least_scale)
    blocks = x.to(torch.float32).reshape(sizes["s"], sizes["w"] // block, block)
    scales = block_scales(blocks, rule)
    codes = encode_e4m3(blocks / scales[..., None]).view(sizes["s"], sizes["w"]).view(torch.float8_e4m3fn)
    return codes, encode_ue8m0(scales) if scale_format == "ue8m0" else scales
