"""Quantisation to e4m3 by blocks of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import ATTENTION_DTYPES, check_scale_rule, check_tensor
from .float8 import block_scales, codes_of
from .padding import padded


@triton.jit
def _quantize_kernel(
    x_ptr, codes_ptr, scales_ptr, count, per_row, stride_s, least_amax, least_scale,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, POW2: tl.constexpr, EXPONENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = number < count
    row, first = number // per_row, number % per_row * WIDTH
    columns = tl.arange(0, WIDTH_BLOCK)
    inside = live[:, None] & (columns < WIDTH)[None, :]
    x = tl.load(x_ptr + (row * stride_s + first)[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = block_scales(x, least_amax, least_scale, POW2)
    tl.store(codes_ptr + number[:, None] * WIDTH + columns[None, :], codes_of(x, scale[:, None]), mask=inside)
    if EXPONENTS:
        exponent = scale.to(tl.int32, bitcast=True) >> 23
        tl.store(scales_ptr + number, exponent.to(tl.uint8), mask=live)
    else:
        tl.store(scales_ptr + number, scale, mask=live)


def quantize(
    x: torch.Tensor, *, block: int, scale_format: str = "pow2", least_amax: float = 0.0, least_scale: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes of x / scale, one scale for ``block`` neighbouring values of a row.

    ``scale = max(max(amax, least_amax) / 448, least_scale)``, raised to a power of two unless ``scale_format`` is
    fp32; ue8m0 stores its biased exponent. NaN and infinities take no part in it.

    Shapes:
        x: [s, w] bf16, fp16 or fp32, row stride free; ``block`` divides w
    Returns codes float8_e4m3fn [s, w] and scales fp32, or uint8 for ue8m0, [s, w / block].
    Raises ValueError for shapes, dtypes or inner strides that do not fit, and for a rule without a floor.
    """
    check_tensor("x", x, "[s, w]", (None, None), ATTENTION_DTYPES, x.device)
    check_scale_rule(scale_format, least_amax, least_scale)
    s, width = x.shape
    if block < 1 or width % block:
        raise ValueError(f"block: expected a positive divisor of the row, {width}, got {block}")
    exponents = scale_format == "ue8m0"
    codes = torch.empty((s, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((s, width // block), dtype=torch.uint8 if exponents else torch.float32, device=x.device)
    if scales.numel() == 0:
        return codes, scales
    config = launch.rows(padded(block), launch.room(x.device))
    _quantize_kernel[(triton.cdiv(scales.numel(), config.rows),)](
        x, codes.view(torch.uint8), scales, scales.numel(), width // block, x.stride(0), least_amax, least_scale,
        WIDTH=block, WIDTH_BLOCK=padded(block), POW2=scale_format != "fp32", EXPONENTS=exponents, BLOCK=config.rows,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return codes, scales
