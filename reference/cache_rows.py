"""Selected rows of a latent cache as numbers: gathered first and decoded then, so that no cache exists twice.

A cache is a list of rows, or pages of rows, in one of the formats of ``layouts``. Row ``j`` of pages of ``page`` rows
is row j mod page of page j // page.

Shapes:
    kv: [n, width] or [p, page, width]    rows: int64 [m]    keys: [m, c+r]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .layouts import decode_rows, row_width


@dataclass(frozen=True, slots=True)
class CacheRows:
    """The rows of one cache. Raises ValueError for a cache whose rows are not of its format."""

    kv: Tensor
    latent: int
    """c"""
    rope: int
    """r"""
    cache_format: str = "model"
    k_scale: float = 1.0

    def __post_init__(self) -> None:
        width = row_width(self.cache_format, self.latent, self.rope)
        # e4m3 without scales are floats of the model; quantised rows are bytes or e4m3 codes.
        quantised = self.cache_format != "model"
        stored = self.kv.element_size() == 1 if quantised else self.kv.dtype is not torch.uint8
        fits = self.kv.dim() in (2, 3) and self.kv.shape[-1] == width
        if not (fits and stored):
            kind = "bytes" if quantised else "floats"
            raise ValueError(
                f"kv: expected {kind} [n, {width}] or [p, page, {width}] for {self.cache_format}, "
                f"got {self.kv.dtype} {list(self.kv.shape)}"
            )

    def __len__(self) -> int:
        return self.kv.shape[0] * (self.kv.shape[1] if self.kv.dim() == 3 else 1)

    def raw(self, rows: Tensor) -> Tensor:
        """Rows [m, width] as they are stored."""
        if self.kv.dim() == 2:
            return self.kv[rows]
        page = self.kv.shape[1]
        return self.kv[rows // page, rows % page]

    def decoded(self, rows: Tensor, used: Tensor, dtype: torch.dtype) -> Tensor:
        """Keys [m, c+r] in ``dtype``; zeros where ``used`` [m] is not set, whatever a row holds."""
        if not len(self):
            return torch.zeros(len(rows), self.latent + self.rope, dtype=dtype, device=rows.device)
        held = self.raw(torch.where(used, rows, 0))
        keys = decode_rows(held, self.cache_format, latent=self.latent, k_scale=self.k_scale).to(dtype)
        return keys.masked_fill_(~used[:, None], 0.0)
