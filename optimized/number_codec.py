"""Small number formats as numpy codes: bf16 in uint16, e4m3 (fn) and e5m2 in uint8, to and from fp32.

numpy has none of the three, so an interpreter that keeps them as integer codes has to convert by hand. Decoding is
exact. Encoding rounds to nearest, ties to even, with carries into the exponent, denormals, and overflow as
``torch.Tensor.to`` has it: bf16 and e5m2 go to infinity; e4m3, which has none, stops at 448, infinity included (torch
2.13, pytorch#178817; earlier ones gave NaN). Compiled Triton emits ``cvt.rn.satfinite`` for both fp8 formats: the same
for e4m3, while its e5m2 stops at 57344. NaN becomes the quiet NaN of the format and keeps its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_EXPONENT_MASK = np.uint32(0x7F800000)
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True)
class Codec:
    """One format: 1 sign bit, ``exponent`` bits, ``mantissa`` bits."""

    name: str
    exponent: int
    mantissa: int
    bias: int
    infinite: int | None
    """Magnitude code of infinity; None where the format has none."""
    nan: int
    """Magnitude code of the NaN that encoding gives."""
    largest: int
    """Magnitude code of the largest finite value."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def overflow(self) -> int:
        """Magnitude code of what is too large."""
        return self.largest if self.infinite is None else self.infinite

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        return np.uint8 if self.bits == 8 else np.uint16

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The fp32 value of every code."""
        codes = np.arange(1 << self.bits, dtype=np.int64)
        magnitude = codes & ((1 << (self.bits - 1)) - 1)
        exponent, fraction = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        significand = np.where(exponent > 0, fraction + (1 << self.mantissa), fraction)
        value = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - self.bias - self.mantissa)
        value = np.where(magnitude > self.largest, np.nan, value)
        if self.infinite is not None:
            value = np.where(magnitude == self.infinite, np.inf, value)
        return np.where(codes >> (self.bits - 1), -value, value).astype(np.float32)

    def decode(self, codes: Array) -> NDArray[np.float32]:
        """fp32 values of the codes; exact, same shape."""
        if self.bits == 16:  # bf16 is the upper half of fp32: a shift is faster than any table
            return np.left_shift(codes, np.uint32(16), dtype=np.uint32).view(np.float32)
        return np.take(self.table, codes)

    def encode(self, values: Array, *, toward_zero: bool = False) -> Array:
        """Codes of ``values``, which go through fp32 first, as in torch; same shape.

        ``toward_zero`` drops the bits that do not fit (Triton's ``fp_downcast_rounding="rtz"``) and, as such a rounding
        must, stops at the largest finite value.
        """
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            values = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
        bits = values.view(np.uint32)
        magnitude = bits & _MAGNITUDE_MASK
        codes = self._magnitude_codes(magnitude, toward_zero)
        special = magnitude >= _EXPONENT_MASK
        if special.any():
            codes = np.where(special, np.where(magnitude > _EXPONENT_MASK, self.nan, self.overflow), codes)
        sign = (bits >> np.uint32(31)) << np.uint32(self.bits - 1)
        coded: Array = (codes | sign).astype(self.dtype)
        return coded

    def _magnitude_codes(self, magnitude: NDArray[np.uint32], toward_zero: bool) -> Array:
        """Codes of finite magnitudes, given by their fp32 bits."""
        drop = np.uint32(23 - self.mantissa)
        if self.exponent == 8:  # fp32's own exponents: denormals, carries and infinity come out of one addition
            kept, rebased = magnitude, np.uint32(0)
        else:
            kept, rebased = self._normal(magnitude), np.uint32((127 - self.bias) << self.mantissa)
        if toward_zero:
            codes = kept >> drop
        else:
            half = np.uint32((1 << (int(drop) - 1)) - 1)
            codes = (kept + (half + ((kept >> drop) & np.uint32(1)))) >> drop
        codes = codes - rebased
        if self.exponent != 8:
            small = magnitude < np.uint32((128 - self.bias) << 23)
            if small.any():
                codes = np.where(small, self._denormal(magnitude, toward_zero), codes)
        return np.minimum(codes, np.uint32(self.largest if toward_zero else self.overflow))

    def _normal(self, magnitude: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Magnitudes raised to the smallest normal value, so that rebasing cannot wrap around."""
        return np.maximum(magnitude, np.uint32((128 - self.bias) << 23))

    def _denormal(self, magnitude: NDArray[np.uint32], toward_zero: bool) -> NDArray[np.uint32]:
        """Codes below the smallest normal value: the magnitude counted in units of the smallest denormal.

        The product is exact in fp64, whose rint rounds ties to even.
        """
        units = magnitude.view(np.float32).astype(np.float64) * 2.0 ** (self.bias + self.mantissa - 1)
        units = np.minimum(units, 1 << self.mantissa)
        return (np.floor(units) if toward_zero else np.rint(units)).astype(np.uint32)


BF16 = Codec("bf16", exponent=8, mantissa=7, bias=127, infinite=0x7F80, nan=0x7FC0, largest=0x7F7F)
E4M3 = Codec("e4m3", exponent=4, mantissa=3, bias=7, infinite=None, nan=0x7F, largest=0x7E)
E5M2 = Codec("e5m2", exponent=5, mantissa=2, bias=15, infinite=0x7C, nan=0x7F, largest=0x7B)
FP16 = Codec("fp16", exponent=5, mantissa=10, bias=15, infinite=0x7C00, nan=0x7E00, largest=0x7BFF)


def round_to_odd(total: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.float32]:
    """``total + error`` in fp32, its last bit set when bits were lost: a later rounding to fewer bits is then as exact
    as if the sum had been rounded once (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
    algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008).
    """
    near = total.astype(np.float32)
    lost = total - near.astype(np.float64)
    lost = np.where(lost == 0.0, error, lost)
    even = (near.view(np.uint32) & np.uint32(1)) == 0
    move = even & np.isfinite(near) & np.isfinite(total) & (lost != 0.0)
    return np.where(move, np.nextafter(near, np.copysign(np.inf, lost).astype(np.float32)), near)


def fused_multiply_add(x: Array, y: Array, z: Array) -> NDArray[np.float32]:
    """x * y + z of fp32 arrays that hold bf16 values, ready to be rounded to bf16 once.

    The product of two 8-bit significands is exact in fp64; the error of the sum is recovered by Knuth's two-sum.
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    return round_to_odd(total, error)
