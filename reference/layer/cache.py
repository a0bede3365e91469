"""Paged caches: the latent rows of the attention and the keys of the indexer, with the owner of every row.

The token at position p of a request lies in page ``block_table[request, p // block_size]``, row ``p % block_size``.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..layouts import ScaleRule, block_scales
from .events import CacheRead, CacheWrite, Range
from .packing import pack_e4m3
from .trace import Trace


class PagedCache:
    """Rows [n, width] in pages of ``block_size``; who wrote each row is kept beside it.

    Behind the last row lies a spare one, which nobody reads: padding is written there, so that a write has the same
    shape whatever the padding, as it must in a graph.
    """

    name: Literal["latent", "index"]

    def __init__(
        self, blocks: int, block_size: int, width: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        rows = blocks * block_size
        self.block_size = block_size
        self._values = torch.zeros(rows + 1, width, device=device).to(dtype)
        self._owners = torch.full((rows + 1,), -1, dtype=torch.int32, device=device)
        self._positions = torch.full((rows + 1,), -1, dtype=torch.int32, device=device)
        self.values, self.owners, self.positions = self._values[:-1], self._owners[:-1], self._positions[:-1]

    def _claim(self, slots: Tensor, requests: Tensor, positions: Tensor, trace: Trace) -> Tensor:
        """Mark the rows as written; the row of every token, the spare one for padding."""
        rows = torch.where(slots >= 0, slots, len(self.values))
        self._owners[rows] = requests.to(self.owners)
        self._positions[rows] = positions.to(self.positions)
        trace.events.append(CacheWrite(self.name, slots.clone()))
        return rows

    def note_read(self, slots: Tensor, tokens: Range, reader: str, trace: Trace) -> None:
        """Record which rows a reader saw and whose they were."""
        rows = torch.where((slots >= 0) & (slots < len(self.owners)), slots, len(self.owners)).long()
        nobody = torch.full_like(self.owners[:1], -1)
        owners, positions = (
            torch.cat((known, nobody)).index_select(0, rows.flatten()).view(rows.shape)
            for known in (self.owners, self.positions)
        )
        trace.events.append(CacheRead(self.name, reader, tokens, slots.clone(), owners, positions))


class LatentCache(PagedCache):
    """Rows cat(kv_c, k_pe) [n, c+r], in a float dtype or in plain e4m3 with one scale: value = code * k_scale."""

    name = "latent"
    format = "model"
    """How a sparse kernel is to read ``values``: as they are, or as rows of ``fp8_ds_mla``."""

    def __init__(
        self,
        blocks: int,
        block_size: int,
        width: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        k_scale: float = 1.0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(blocks, block_size, width, dtype, device)
        self.k_scale = k_scale

    @property
    def quantized(self) -> bool:
        return self.values.element_size() == 1

    def write(self, slots: Tensor, latents: Tensor, requests: Tensor, positions: Tensor, trace: Trace) -> None:
        """Store the latents [s, c+r] of new tokens; ``slots`` int64 [s], -1 for padding."""
        rows = self._claim(slots, requests, positions, trace)
        if self.quantized:
            latents = pack_e4m3(latents, self.k_scale)
        self._values[rows] = latents.to(self.values.dtype)

    def rows(self, slots: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Dequantised rows [x, c+r], all of them for None."""
        values = (self.values if slots is None else self.values[slots]).to(dtype)
        return values * self.k_scale if self.quantized else values


class IndexCache(PagedCache):
    """One key [n, e] a token for the indexer; e4m3 keys carry a power-of-two scale each, others a scale of 1."""

    name = "index"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        width: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(blocks, block_size, width, dtype, device)
        self._scales = torch.ones(len(self._values), dtype=torch.float32, device=device)
        self.scales = self._scales[:-1]

    def write(self, slots: Tensor, keys: Tensor, requests: Tensor, positions: Tensor, trace: Trace) -> None:
        """Store the keys [s, e]: scale = 2^ceil(log2(max(amax, 1e-4) / 448)), as DeepGEMM's e8m0 scales."""
        rows = self._claim(slots, requests, positions, trace)
        if self.values.element_size() == 1:
            scales = block_scales(keys, ScaleRule("pow2", least_amax=1e-4))
            self._scales[rows] = scales
            keys = keys / scales[:, None]
        self._values[rows] = keys.to(self.values.dtype)
