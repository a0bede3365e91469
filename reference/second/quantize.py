"""Quantisation block by block. Different from the first: codes by nearest value, scales by search (``float8``)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import float8


def quantize(
    x: float8.Array, *, block: int, scale_format: str = "pow2", least_amax: float = 0.0, least_scale: float = 0.0
) -> tuple[float8.Bytes, NDArray[np.generic]]:
    """codes [s, w], and scales [s, w / block], fp32 or exponent bytes."""
    codes = np.zeros(x.shape, dtype=np.uint8)
    scale = np.zeros((x.shape[0], x.shape[1] // block), dtype=np.float32)
    for number in range(scale.shape[1]):
        columns = slice(number * block, (number + 1) * block)
        scale[:, number] = float8.scales(x[:, columns], scale_format, least_amax, least_scale)
        with np.errstate(over="ignore", under="ignore"):
            quotient = x[:, columns].astype(np.float32) / scale[:, number, None]
        codes[:, columns] = float8.encode(quotient.astype(np.float64))
    return codes, (np.log2(scale) + 127).astype(np.uint8) if scale_format == "ue8m0" else scale
