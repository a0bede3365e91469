"""Faults of the layout operators in their arithmetic and their bytes: quantisers, cache rows, pages, dequantisation."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.layouts import E4M3, coded, largest, row_of

fault = sited("layout-bytes")


def _truncated(quotient: Tensor) -> Tensor:
    """Codes of the nearest value towards zero."""
    codes = coded(quotient)
    over = codes.view(E4M3).float().abs() > quotient.clamp(-448, 448).abs()
    return torch.where(over, codes - 1, codes)


def _through_fp16(quotient: Tensor) -> Tensor:
    """Rounded to fp16 first and to e4m3 afterwards."""
    return coded(quotient.clamp(-448, 448).half().float())


def _away_from_zero(quotient: Tensor) -> Tensor:
    """Ties go to the larger size: a nudge of one ulp before a rounding to even."""
    bits = quotient.contiguous().view(torch.int32)
    nudged = torch.where(quotient.isfinite() & (quotient != 0), bits + 1, bits).view(torch.float32)
    return coded(nudged)


def _nan_where_too_large(quotient: Tensor) -> Tensor:
    return torch.where(quotient.abs() > 448.0, coded(quotient) | 127, coded(quotient))


def _fnuz(quotient: Tensor) -> Tensor:
    return quotient.clamp(-240.0, 240.0).to(torch.float8_e4m3fnuz).view(torch.uint8)


def _exponents_up(scale: Tensor) -> Tensor:
    """2^ceil(log2 scale) through fp32 functions that round."""
    return torch.exp2(torch.ceil(torch.log2(scale)))


def _exponents_near(scale: Tensor) -> Tensor:
    return torch.exp2(torch.round(torch.log2(scale)))


def _always_up(scale: Tensor) -> Tensor:
    """Powers of two are raised as well: the fraction is not looked at."""
    return ((scale.contiguous().view(torch.int32) + 0x800000) & -0x800000).view(torch.float32)


def _with_reciprocal(amax: Tensor, least_amax: float, least_scale: float) -> Tensor:
    """1 / 448 is rounded before it is multiplied with."""
    return (amax.clamp_min(least_amax) * torch.tensor(1.0 / 448.0)).clamp_min(least_scale)


def _scales_first(codes: Tensor, scales: Tensor, rope: Tensor) -> Tensor:
    bytes_ = row_of(codes, scales, rope)
    c, at = codes.shape[1], codes.shape[1] + 4 * scales.shape[1]
    return torch.cat((bytes_[:, c:at], bytes_[:, :c], bytes_[:, at:]), 1)


def _rope_before_scales(codes: Tensor, scales: Tensor, rope: Tensor) -> Tensor:
    bytes_ = row_of(codes, scales, rope)
    c, at = codes.shape[1], codes.shape[1] + 4 * scales.shape[1]
    return torch.cat((bytes_[:, :c], bytes_[:, at:], bytes_[:, c:at]), 1)


def _big_endian(scale: Tensor) -> Tensor:
    return scale.contiguous().view(torch.uint8).view(-1, 4).flip(1).contiguous().view(torch.float32).view(scale.shape)


def _by_exponent(scale: Tensor) -> Tensor:
    """fp32 scales as a reader of e8m0 sees them."""
    return (scale.contiguous().view(torch.int32) & -0x800000).view(torch.float32)


def _nan_as_480(codes: Tensor) -> Tensor:
    """The NaN codes read as the number they would be."""
    values = codes.contiguous().view(E4M3).float()
    sign = torch.where(codes >= 128, -480.0, 480.0)
    return torch.where(codes & 127 == 127, sign, values)


def _bf16_truncated(values: Tensor) -> Tensor:
    return (values.contiguous().view(torch.int32) & -0x10000).view(torch.float32).bfloat16()


_SIDE_BY_SIDE = {
    "code_at": lambda place, size, e: place * (e + 4),
    "scale_at": lambda place, size, e: place * (e + 4) + e,
}

LAYOUT_BYTES = (
    fault(
        "codes-truncated", "quantize", "Quotients are cut to e4m3, not rounded.", "", "exact", code=_truncated,
    ),
    fault(
        "codes-rounded-twice", "quantize", "Quotients are rounded to fp16 and then to e4m3.", "FreeToken#103", "exact",
        code=_through_fp16, options=("dtype=fp32",),
    ),
    fault(
        "code-ties-away-from-zero", "quantize", "Ties between codes go to the larger one.", "", "exact",
        code=_away_from_zero, options=("kind=edges",),
    ),
    fault(
        "codes-nan-when-too-large", "quantize", "What exceeds 448 becomes NaN instead of 448.", "pytorch#178817",
        "exact", code=_nan_where_too_large, options=("kind=nonfinite",),
    ),
    fault(
        "codes-written-as-fnuz", "quantize", "Codes are those of the FNUZ format.", "vllm#45720", "exact", code=_fnuz,
    ),
    fault(
        "quotient-by-reciprocal", "quantize", "Values are multiplied by the rounded 1 / scale.", "", "exact",
        quotient=lambda x, scale: x * (1.0 / scale), options=("kind=edges", "fp32-scales"),
    ),
    fault(
        "scale-by-log2-and-exp2", "quantize", "The power of two comes from fp32 log2 and exp2.", "sglang#31210",
        "exact", raise_scale=_exponents_up, options=("kind=edges", "dtype=fp32"),
    ),
    fault(
        "scale-rounded-to-nearest-power", "quantize", "Scales go to the nearest power of two, not up.", "", "exact",
        raise_scale=_exponents_near,
    ),
    fault(
        "scale-of-a-power-doubled", "quantize", "A scale that is a power of two is raised as well.", "sglang#31210",
        "exact", raise_scale=_always_up, options=("kind=edges",),
    ),
    fault(
        "scale-by-reciprocal-of-448", "quantize", "amax is multiplied by a rounded 1 / 448.", "", "exact",
        floor=_with_reciprocal, options=("fp32-scales", "kind=edges"),
    ),
    fault(
        "scale-floor-missing", "quantize", "A block of zeros is divided by zero.", "vllm#49435", "exact",
        floor=lambda amax, least_amax, least_scale: amax / 448.0, options=("kind=zeros",),
    ),
    fault(
        "scale-floor-of-the-other-kernel", "quantize", "The floor is 1e-4 where 1e-10 was asked for.", "", "exact",
        floor=lambda amax, least_amax, least_scale: amax.clamp_min(1e-4) / 448.0,
        options=("amax-1e-10", "kind=tiny"),
    ),
    fault(
        "scale-floor-on-amax", "write_cache", "The floor of 1e-4 is put on amax, not on the scale.", "vllm#49435",
        "exact", floor=lambda amax, least_amax, least_scale: amax.clamp_min(least_scale) / 448.0,
        options=("fp8_ds_mla", "kind=zeros"),
    ),
    fault(
        "scale-of-signed-maximum", "quantize", "amax takes the largest value, not the largest size.", "", "exact",
        amax=lambda blocks: torch.where(blocks.isfinite(), blocks, 0.0).amax(-1).clamp_min(0.0),
    ),
    fault(
        "nan-spreads-over-the-block", "quantize", "A NaN is the maximum of its block and spoils all of it.", "",
        "exact", amax=lambda blocks: torch.where(blocks.isinf(), 0.0, blocks).abs().amax(-1),
        options=("kind=nonfinite",),
    ),
    fault(
        "exponent-byte-without-bias", "quantize", "ue8m0 bytes are stored one too low, as of another bias.", "",
        "exact", exponent=lambda scale: ((scale.view(torch.int32) >> 23) - 1).to(torch.uint8), options=("ue8m0",),
    ),
    fault(
        "scale-not-raised-by-writer", "write_cache", "The writer stores amax / 448 where powers of two are agreed.",
        "vllm#49435", "exact", raise_scale=lambda scale: scale, options=("fp8_ds_mla",),
    ),
    fault(
        "row-scales-before-codes", "write_cache", "The scales of a row come before its codes.", "", "exact",
        row=_scales_first, options=("fp8_ds_mla",),
    ),
    fault(
        "row-rope-before-scales", "write_cache", "The rotated dims come before the scales.", "", "exact",
        row=_rope_before_scales, options=("fp8_ds_mla",),
    ),
    fault(
        "row-rope-in-fp16", "write_cache", "The rotated dims are stored in fp16.", "", "exact",
        row=lambda codes, scales, rope: row_of(codes, scales, rope.half().view(torch.bfloat16).float()),
        options=("fp8_ds_mla",),
    ),
    fault(
        "row-scales-big-endian", "write_cache", "The bytes of scales are stored in reverse.", "", "exact",
        stored=_big_endian, options=("fp8_ds_mla",),
    ),
    fault(
        "row-one-scale-for-all-tiles", "write_cache", "Every tile stores the scale of the first.", "", "exact",
        stored=lambda scale: scale[:, :1].expand_as(scale).contiguous(), options=("fp8_ds_mla",),
    ),
    fault(
        "k-scale-multiplied", "write_cache", "Values are multiplied by k_scale instead of divided.", "sglang#34765",
        "exact", quotient=lambda x, scale: x * scale if scale.dim() == 0 else x / scale, options=("fp8_e4m3",),
    ),
    fault(
        "index-page-written-side-by-side", "write_index", "Each token's scale is put behind its codes.", "vllm#50576",
        "exact", **_SIDE_BY_SIDE,
    ),
    fault(
        "index-page-read-side-by-side", "gather_index", "Pages are read as rows of codes and a scale.", "vllm#50576",
        "exact", **_SIDE_BY_SIDE,
    ),
    fault(
        "index-scales-at-a-fixed-page-size", "write_index", "Scales begin where those of 64-token pages do.", "",
        "exact", scale_at=lambda place, size, e: (64 * e + 4 * place) % (size * (e + 4) - 3), options=("page-16",),
    ),
    fault(
        "index-scale-of-next-token", "gather_index", "A token gets the scale of the next one.", "", "exact",
        scale_at=lambda place, size, e: size * e + 4 * ((place + 1) % size),
    ),
    fault(
        "stored-scale-read-by-exponent", "gather", "fp32 scales are read as e8m0.", "FlashMLA#184", "exact",
        scale=_by_exponent, options=("fp8_ds_mla",),
    ),
    fault(
        "stored-scale-in-bf16", "gather", "Scales are rounded to bf16 when they are read.", "", "exact",
        scale=lambda scale: scale.bfloat16().float(), options=("fp8_ds_mla",),
    ),
    fault(
        "codes-read-as-fnuz", "gather", "Codes are read as the FNUZ format: half the value.", "vllm#45720", "exact",
        value=lambda codes: codes.contiguous().view(torch.float8_e4m3fnuz).float(), options=("fp8_e4m3",),
    ),
    fault(
        "nan-codes-read-as-480", "gather", "NaN codes are read as 480.", "", "exact", value=_nan_as_480,
        options=("fp8_e4m3", "kind=codes"),
    ),
    fault(
        "dequantised-in-bf16", "gather", "Code and scale are multiplied in bf16.", "", "exact",
        product=lambda values, scale: (values.bfloat16() * scale.bfloat16()).float(), options=("fp8_ds_mla",),
    ),
    fault(
        "dequantised-values-truncated", "gather", "Products are cut to bf16, not rounded.", "", "exact",
        narrow=_bf16_truncated, options=("fp8_ds_mla",),
    ),
    fault(
        "k-scale-not-applied", "gather", "Codes of a plain cache are not multiplied by k_scale.", "sglang#34765",
        "exact", product=lambda values, scale: values if scale.dim() == 0 else values * scale, options=("fp8_e4m3",),
    ),
    fault(
        "scale-of-next-tile", "gather", "A tile is multiplied by the scale of the next.", "", "exact",
        scale=lambda scale: scale.roll(-1, 1), options=("fp8_ds_mla",),
    ),
    fault(
        "amax-of-the-whole-row", "quantize", "All blocks of a row share one scale.", "", "exact",
        amax=lambda blocks: largest(blocks).amax(-1, keepdim=True).expand(blocks.shape[:-1]).contiguous(),
    ),
)  # fmt: skip
