"""Caches of a layer that hold bytes in an engine's layout, and ones that are read in another than they are written.

A right cache writes and reads by ``reference/layouts``. The faulty ones write as it does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...reference.layer import IndexCache, RowCache, Trace
from ...reference.layouts import SCALE_BYTES, decode_index_pages, decode_plain_rows
from ...reference.write_index import write_index


class FlatlyGathered(RowCache):
    """Rows gathered for the dense branch are read as plain e4m3 of one scale; sparse attention reads them rightly."""

    def rows(self, slots: Tensor | None, dtype: torch.dtype) -> Tensor:
        if slots is None:
            return super().rows(None, dtype)
        codes = self.values[slots][:, : self.latent + self.rope]
        return decode_plain_rows(codes, k_scale=self.k_scale).to(dtype)


class IndexPageCache(IndexCache):
    """Keys of the indexer in pages of bytes: all codes of a page first, then its scales."""

    def __init__(self, blocks: int, block_size: int, width: int) -> None:
        super().__init__(blocks, block_size, width, dtype=torch.float8_e4m3fn)
        self.pages = torch.zeros(blocks, block_size * (width + SCALE_BYTES), dtype=torch.uint8)

    def write(self, slots: Tensor, keys: Tensor, requests: Tensor, positions: Tensor, trace: Trace) -> None:
        self._claim(slots, requests, positions, trace)
        write_index(keys, slots, self.pages)
        codes, scales = self.decode()
        self.values = codes.contiguous().view(torch.float8_e4m3fn).view_as(self.values)
        self.scales = scales.contiguous().view_as(self.scales)

    def decode(self) -> tuple[Tensor, Tensor]:
        """Codes uint8 [blocks, block_size, e] and scales fp32 [blocks, block_size]."""
        return decode_index_pages(self.pages, e=self.values.shape[1])


class InterleavedPages(IndexPageCache):
    """Reads each token as a row of its codes and its scale, in pages that are not written so."""

    def decode(self) -> tuple[Tensor, Tensor]:
        width = self.values.shape[1]
        rows = self.pages.view(len(self.pages), self.block_size, width + SCALE_BYTES)
        return rows[..., :width], rows[..., width:].contiguous().view(torch.float32)[..., 0]
