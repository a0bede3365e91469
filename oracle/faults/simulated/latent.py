"""Quantised cache rows as a simulated kernel reads them: bytes to fp32, every step an error site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 128


def tiles_of(c: int) -> int:
    """Scales of a row of fp8_ds_mla."""
    return max(1, c // TILE)


@dataclass(frozen=True, slots=True)
class LatentSites:
    """Error sites of the decoding; right by default. Rows are gathered already, [..., width] bytes."""

    codes: Callable[[Tensor], Tensor] = lambda raw: raw.view(torch.float8_e4m3fn).float()
    """Bytes to fp32 numbers."""
    scales: Callable[[Tensor, int], Tensor] = lambda rows, c: rows[..., c : c + 4 * tiles_of(c)]
    """The bytes that hold the scales of fp8_ds_mla rows, from the rows and c."""
    scale: Callable[[Tensor], Tensor] = lambda scales: scales
    """Tile scales [..., tiles] as they are used."""
    dequantise: Callable[[Tensor, Tensor], Tensor] = lambda codes, scales: codes * scales[..., None]
    """Codes [..., tiles, tile] times scales."""
    value_tiles: Callable[[Tensor, Tensor], Tensor] | None = None
    """The same as values see it; None: as keys do."""
    scale_row: Callable[[Tensor, int], Tensor] | None = None
    """Rows of the cache whose scales are read, from the rows whose codes are, and how many there are."""
    rope_row: Callable[[Tensor, int], Tensor] | None = None
    """The same for the rotated dims."""
    rope: Callable[[Tensor, int], Tensor] = lambda rows, c: (
        rows[..., c + 4 * tiles_of(c) :].contiguous().view(torch.bfloat16).float()
    )
    """Rotated dims of fp8_ds_mla rows."""
    key_scale: Callable[[float], float] = lambda k_scale: k_scale
    """k_scale as keys see it."""
    value_scale: Callable[[float], float] = lambda k_scale: k_scale
    """k_scale as values see it."""
    query: Callable[[Tensor, float], Tensor] = lambda q, q_scale: q * q_scale


LATENT_SITES = LatentSites()


def decode(rows: Tensor, cache_format: str, c: int, k_scale: float, sites: LatentSites) -> tuple[Tensor, Tensor]:
    """Keys [..., c+r] and values [..., c] in fp32 of gathered rows [..., width]."""
    if cache_format == "fp8_e4m3":
        numbers = sites.codes(rows.contiguous().view(torch.uint8))
        return numbers * sites.key_scale(k_scale), numbers[..., :c] * sites.value_scale(k_scale)
    scales = sites.scale(sites.scales(rows, c).contiguous().view(torch.float32))
    tiles = sites.codes(rows[..., :c].contiguous()).view(*rows.shape[:-1], tiles_of(c), -1)
    latent = sites.dequantise(tiles, scales).flatten(-2)
    values = latent if sites.value_tiles is None else sites.value_tiles(tiles, scales).flatten(-2)
    return torch.cat((latent, sites.rope(rows, c)), -1), values
