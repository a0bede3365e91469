"""The scale of a block: what its values are divided by before they become codes.

    scale = max(max(amax, least_amax) / 448, least_scale)          amax over the finite values of the block
    pow2, ue8m0:  the smallest power of two that is not below it

Everything is fp32, rounded to nearest; the power of two is found in the bits, since log2 and exp2 round. A floor is
needed: a block of zeros would be divided by zero. ``ue8m0`` stores the exponent alone, 2^(byte - 127), FF for NaN.

Source: vLLM 0.33.0 and DeepSeek-V3.2-Exp ``kernel.py``: least_amax 1e-4 (indexer keys and fused queries) or 1e-10
(``fused_indexer_q_rope_quant``); FlashMLA at 9241ae3 ``tests/quant.py`` and vLLM's fp8_ds_mla writer (vllm#49435):
least_scale 1e-4; sglang#31210 for the bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .float8 import E4M3_MAX

ScaleFormat = Literal["fp32", "pow2", "ue8m0"]
SCALE_FORMATS: tuple[ScaleFormat, ...] = ("fp32", "pow2", "ue8m0")
_SMALLEST_NORMAL = 2.0**-126
_NAN_EXPONENT = 255


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """How the scale of a block follows from its largest value. Raises ValueError for a rule that can give none."""

    scale_format: str = "pow2"
    least_amax: float = 0.0
    least_scale: float = 0.0

    def __post_init__(self) -> None:
        if self.scale_format not in SCALE_FORMATS:
            raise ValueError(f"scale_format: expected one of {', '.join(SCALE_FORMATS)}, got {self.scale_format!r}")
        floor = max(self.least_amax / E4M3_MAX, self.least_scale)
        if not _SMALLEST_NORMAL <= floor < math.inf or min(self.least_amax, self.least_scale) < 0:
            raise ValueError(
                "least_amax, least_scale: expected one of them positive and neither negative, since a block of zeros "
                f"has no other scale, got {self.least_amax} and {self.least_scale}"
            )


def block_scales(blocks: Tensor, rule: ScaleRule) -> Tensor:
    """fp32 [...] scales of blocks [..., w]; NaN and infinities take no part."""
    sizes = blocks.to(torch.float32).abs()
    amax = torch.where(sizes < torch.inf, sizes, 0.0).amax(-1)
    # By a tensor: by a number, torch multiplies with the rounded reciprocal on a GPU, which is another scale.
    largest = torch.full((), E4M3_MAX, device=blocks.device)
    scale = (amax.clamp_min(rule.least_amax) / largest).clamp_min(rule.least_scale)
    return scale if rule.scale_format == "fp32" else power_of_two_at_least(scale)


def power_of_two_at_least(x: Tensor) -> Tensor:
    """fp32: the smallest power of two that is not below ``x``, positive normal numbers of at most 2^127."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2^exponent, mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return (exponent + 127 << 23).to(torch.int32).view(torch.float32)


def encode_ue8m0(scales: Tensor) -> Tensor:
    """Exponent bytes uint8 of powers of two fp32. Raises ValueError for what is no power of two from 2^-126 on."""
    mantissa, exponent = torch.frexp(scales)
    if not bool(((mantissa == 0.5) & (exponent > -126)).all()):
        raise ValueError("scales: expected powers of two from 2^-126 to 2^127, which ue8m0 can hold, got others")
    return (exponent + 126).to(torch.uint8)


def decode_ue8m0(exponents: Tensor) -> Tensor:
    """fp32 scales of exponent bytes uint8: 2^(byte - 127), NaN for FF."""
    byte = exponents.to(torch.int32)
    tiny = torch.full_like(byte, 1 << 22)  # byte 0: 2^-127 has no exponent of its own in fp32
    bits = torch.where(byte == 0, tiny, byte << 23)
    return torch.where(byte == _NAN_EXPONENT, torch.nan, bits.view(torch.float32))


def require_scale(name: str, value: float) -> None:
    """Raises ValueError unless ``value`` can be a scale: finite, positive, and a normal fp32 number."""
    if not _SMALLEST_NORMAL <= value < 2.0**128:
        raise ValueError(f"{name}: expected a positive finite number, got {value}")
