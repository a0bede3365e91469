"""The formats of a latent cache row by name.

model        values in the dtype of the cache, bf16 as a rule
fp8_e4m3     ``plain_rows``
fp8_ds_mla   ``mla_rows``
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .mla_rows import MlaRow, decode_mla_rows, encode_mla_rows
from .plain_rows import decode_plain_rows, encode_plain_rows
from .scales import ScaleRule

CacheFormat = Literal["model", "fp8_e4m3", "fp8_ds_mla"]
CACHE_FORMATS: tuple[CacheFormat, ...] = ("model", "fp8_e4m3", "fp8_ds_mla")


def row_width(cache_format: str, latent: int, rope: int) -> int:
    """Elements of a row: bytes in the quantised formats. Raises ValueError for an unknown format."""
    if cache_format not in CACHE_FORMATS:
        raise ValueError(f"cache_format: expected one of {', '.join(CACHE_FORMATS)}, got {cache_format!r}")
    return MlaRow(latent, rope).width if cache_format == "fp8_ds_mla" else latent + rope


def encode_rows(
    latent: Tensor, rope: Tensor, cache_format: str, *, dtype: torch.dtype, rule: ScaleRule, k_scale: float
) -> Tensor:
    """Rows [n, width] of latent [n, c] and rope [n, r]; ``dtype`` is that of the cache. Raises as the format does."""
    row_width(cache_format, latent.shape[1], rope.shape[1])
    if cache_format == "fp8_ds_mla":
        return encode_mla_rows(latent, rope, rule)
    values = torch.cat((latent, rope), 1)
    return encode_plain_rows(values, k_scale=k_scale) if cache_format == "fp8_e4m3" else values.to(dtype)


def decode_rows(rows: Tensor, cache_format: str, *, latent: int, k_scale: float = 1.0) -> Tensor:
    """Values [n, c + r] of rows [n, width]: fp32 for the quantised formats, else as they are.

    Raises ValueError for an unknown format, rows of another width or dtype, and a ``k_scale`` that is none.
    """
    if cache_format == "fp8_ds_mla":
        return decode_mla_rows(rows, latent=latent)
    row_width(cache_format, latent, 0)
    stored = rows.element_size() == 1 if cache_format == "fp8_e4m3" else rows.dtype is not torch.uint8
    if rows.dim() != 2 or rows.shape[1] < latent or not stored:
        kind = "bytes" if cache_format == "fp8_e4m3" else "floats"
        raise ValueError(f"rows: expected {kind} [n, >= {latent}], got {rows.dtype} {list(rows.shape)}")
    return decode_plain_rows(rows, k_scale=k_scale) if cache_format == "fp8_e4m3" else rows
