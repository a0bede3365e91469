"""A latent cache of bytes: rows of ``fp8_ds_mla``, as sparse kernels read them and context is gathered from them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import MlaRow, ScaleRule, decode_mla_rows, encode_mla_rows
from .cache import LatentCache, PagedCache
from .trace import Trace

#: Of the writer of fp8_ds_mla rows: powers of two, none below 1e-4 (vLLM 0.33.0, since vllm#49435).
RULE = ScaleRule("pow2", least_scale=1e-4)


class RowCache(LatentCache):
    """Rows uint8 [n, width]: codes, a scale a tile, and rotated dims in bf16."""

    format = "fp8_ds_mla"

    def __init__(
        self, blocks: int, block_size: int, latent: int, rope: int, *, device: torch.device | str = "cpu"
    ) -> None:
        PagedCache.__init__(self, blocks, block_size, MlaRow(latent, rope).width, torch.uint8, device)
        self.latent, self.rope = latent, rope
        self.k_scale = 1.0

    def write(self, slots: Tensor, latents: Tensor, requests: Tensor, positions: Tensor, trace: Trace) -> None:
        rows = self._claim(slots, requests, positions, trace)
        self._values[rows] = encode_mla_rows(latents[:, : self.latent], latents[:, self.latent :], RULE)

    def rows(self, slots: Tensor | None, dtype: torch.dtype) -> Tensor:
        stored = self.values if slots is None else self.values[slots]
        return decode_mla_rows(stored, latent=self.latent).to(dtype)
