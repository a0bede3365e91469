"""What the quantising kernels share: the scale of a block, e4m3 codes, and bytes read as another type."""

from __future__ import annotations

import triton
import triton.language as tl

E4M3_MAX = tl.constexpr(448.0)


@triton.jit
def block_scales(x, least_amax, least_scale, POW2: tl.constexpr):
    """fp32 scales of the rows of x [rows, columns]; NaN and infinities take no part.

    The power of two is found by a carry into the exponent: log2 and exp2 are not exact.
    """
    size = tl.abs(x)
    amax = tl.max(tl.where(size < float("inf"), size, 0.0), 1)
    scale = tl.maximum(tl.div_rn(tl.maximum(amax, least_amax), E4M3_MAX), least_scale)
    if POW2:
        bits = scale.to(tl.int32, bitcast=True)
        scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def codes_of(x, scale):
    """e4m3 codes as uint8 of x / scale, the quotient rounded once to fp32; what is too large becomes 448."""
    return tl.div_rn(x, scale).to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def values_of(codes):
    """fp32 values of e4m3 codes uint8."""
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def as_fp32(ptr):
    return ptr.to(tl.pointer_type(tl.float32))


@triton.jit
def as_bf16(ptr):
    return ptr.to(tl.pointer_type(tl.bfloat16))


@triton.jit
def as_int32(ptr):
    return ptr.to(tl.pointer_type(tl.int32))
