"""A short test of the mended interpreter, run each time it is mended: one answer for each thing that was wrong."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from .number_codec import BF16


def failed_probe(interpreter: ModuleType) -> str | None:
    """What the mended interpreter gets wrong; None if every probe holds."""
    builder, handle, tl = interpreter.interpreter_builder, interpreter.TensorHandle, interpreter.tl
    nearest = interpreter._ir.ROUNDING_MODE.RTNE

    def bf16(*values: float) -> Any:
        return handle(BF16.encode(np.array(values)), tl.bfloat16)

    def fp32(*values: float) -> Any:
        return handle(np.array(values, dtype=np.float32), tl.float32)

    def fp8(code: int) -> Any:
        return handle(np.array([code], dtype=np.uint8), tl.float8e4nv)

    odd = handle(np.array([257], dtype=np.int32), tl.int32)
    three, square = bf16(3.0), handle(BF16.encode(np.full((2, 2), 3.0)), tl.bfloat16)
    zeros = handle(np.zeros((2, 2), dtype=np.float32), tl.float32)
    tensor = tl.core.tensor(bf16(1.0, 256.0, 1.0, 0.0), tl.block_type(tl.bfloat16, [4]))
    reduction = interpreter.ReduceOps(0, tl.standard._sum_combine, False)
    answers = {
        "fp32 -> bf16 rounds up": (builder.create_fp_trunc(fp32(1.0 + 3 * 2.0**-9), tl.bfloat16), 0x3F81),
        "fp32 -> bf16 carries": (builder.create_fp_trunc(fp32(2.0 - 2.0**-20), tl.bfloat16), 0x4000),
        "bf16 -> fp32": (builder.create_fp_ext(three, tl.float32), 3.0),
        "int32 -> bf16": (builder.create_si_to_fp(odd, tl.bfloat16), 0x4380),
        "bf16 +": (builder.create_fadd(three, three), 0x40C0),
        "bf16 *": (builder.create_fmul(three, three), 0x4110),
        "bf16 <": (builder.create_fcmpOLT(bf16(-3.0), bf16(-2.0)), True),
        "bf16 negation": (builder.unary_op(three, np.negative), 0xC040),
        "bf16 fma": (builder.create_fma(three, three, three), 0x4140),
        "bf16 dot": (builder.create_dot(square, square, zeros, None, 0), 18.0),
        "bf16 sum": (reduction.sum(tensor).handle, 0x4381),
        "e4m3 NaN": (builder.create_fp_to_fp(fp8(0xFF), tl.float32, None), np.nan),
        "fp32 -> e4m3 carries": (builder.create_fp_to_fp(fp32(15.9), tl.float8e4nv, nearest), 0x58),
        "fp32 -> e4m3 overflow": (builder.create_fp_to_fp(fp32(480.0), tl.float8e4nv, nearest), 0x7E),
        "fp32 -> e5m2 overflow": (builder.create_fp_to_fp(fp32(61440.0), tl.float8e5, nearest), 0x7C),
    }
    for name, (got, expected) in answers.items():
        if not np.all(np.isclose(got.data, expected, rtol=0.0, atol=0.0, equal_nan=True)):
            return f"{name}: expected {expected}, got {np.ravel(got.data)[0]}"
    return None
