"""Quantised caches: scales read in another format or place, bytes read as another type.

Where an operator's inputs are already dequantised, the values are multiplied by the ratio of the scale used to the
right one, so that the fault acts without any rounding of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..fault import sited
from ..wrapped import Inputs
from .indexer import floor_power_of_two
from .pipeline import staged

fault = sited("quantisation")
stage = staged("quantisation")
TILE = 128
PAGE = 64


def _tiles(kv: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """Latent tiles fp32 [n, c / 128, 128] (one tile if c is smaller) and their scales amax / 448 [n, c / 128, 1]."""
    size = TILE if c % TILE == 0 else c
    tiles = kv[:, :c].float().reshape(kv.shape[0], c // size, size)
    return tiles, tiles.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448


def _rescaled(ratio: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    """Latent tiles of the cache multiplied by ``ratio(scales)``."""

    def change(x: Inputs) -> Inputs:
        kv = x["kv"].float().clone()
        tiles, scales = _tiles(kv, x["value_dim"])
        kv[:, : x["value_dim"]] = (tiles * ratio(scales)).flatten(1)
        return {"kv": kv.to(x["kv"].dtype)}

    return change


def _zero_tile_divided(x: Inputs) -> Inputs:
    """The quantiser divides by amax without a floor: a tile of zeros becomes NaN."""
    kv = x["kv"].float().clone()
    tiles, _ = _tiles(kv, x["value_dim"])
    zero = (tiles == 0).all(-1, keepdim=True)
    kv[:, : x["value_dim"]] = torch.where(zero, torch.nan, tiles).flatten(1)
    return {"kv": kv.to(x["kv"].dtype)}


def _planar_read_interleaved(x: Inputs) -> Inputs:
    """Pages written as all values, then all scales, are read as value and scale side by side."""
    k = x["k"]
    t, width = k.shape[0], k.shape[1] * k.element_size()
    pages = -(-t // PAGE)
    values = torch.zeros(pages * PAGE, width, dtype=torch.uint8, device=k.device)
    scales = torch.zeros(pages * PAGE, 4, dtype=torch.uint8, device=k.device)
    values[:t] = k.contiguous().view(torch.uint8).view(t, width)
    scales[:t] = x["k_scale"].contiguous().view(torch.uint8).view(t, 4)
    planar = torch.cat((values.view(pages, -1), scales.view(pages, -1)), 1)
    records = planar.view(pages * PAGE, width + 4)[:t]
    keys = records[:, :width].contiguous().view(k.dtype)
    return {"k": keys, "k_scale": records[:, width:].contiguous().view(torch.float32).view(t)}


def _fnuz(x: Tensor) -> Tensor:
    """fp32 values of e4m3 codes read as the FNUZ variant, whose bias is one larger."""
    return x.contiguous().view(torch.float8_e4m3fnuz).float() if x.dtype is torch.float8_e4m3fn else x.float()


def _e5m2(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.float8_e5m2).float() if x.dtype is torch.float8_e4m3fn else x.float()


QUANTISATION = (
    stage(
        "cache-scale-exponent-only", "sparse_mqa", "fp32 tile scales of the cache are read as exponents.",
        "FlashMLA#184", "element", _rescaled(lambda scale: floor_power_of_two(scale) / scale),
    ),
    stage(
        "cache-scale-of-first-tile", "sparse_mqa", "One scale serves all tiles of a cache row.", "vllm#48611",
        "element", _rescaled(lambda scale: scale[:, :1] / scale),
    ),
    stage(
        "cache-scale-of-next-tile", "sparse_mqa", "Each tile has the scale of the next.", "", "element",
        _rescaled(lambda scale: scale.roll(-1, 1) / scale),
    ),
    stage(
        "cache-scale-of-neighbour-row", "sparse_mqa", "A cache row has the scales of the row before.", "", "element",
        _rescaled(lambda scale: scale.nan_to_num(nan=1.0).roll(1, 0) / scale),
    ),
    stage(
        "cache-scale-in-bf16", "sparse_mqa", "Tile scales are rounded to bf16.", "", "element",
        _rescaled(lambda scale: scale.bfloat16().float() / scale),
    ),
    stage(
        "zero-tile-scale-nan", "sparse_mqa", "A tile of zeros is divided by its largest value.", "vllm#49435",
        "structure", _zero_tile_divided, options=("kind=tagged",),
    ),
    fault(
        "value-scale-not-restored", "sparse_mqa", "A calibrated scale of 0.75 is restored in q.k and not in P.V.",
        "sglang#34765", "element", values=lambda rows, c: rows[..., :c] / 0.75,
    ),
    fault(
        "key-scale-not-restored", "sparse_mqa", "A calibrated scale of 0.75 is restored in P.V and not in q.k.",
        "sglang#34765", "element", score=lambda qk, scale: qk * scale / 0.75,
    ),
    stage(
        "index-cache-planar-read-interleaved", "indexer_scores",
        "Pages hold all values and then all scales; they are read record by record.", "vllm#50576", "element",
        _planar_read_interleaved, options=("dtype=e4m3",),
    ),
    fault(
        "keys-read-as-fnuz", "indexer_scores", "e4m3 codes are read as the FNUZ variant: half the value.",
        "vllm#45720", "element", options=("dtype=e4m3",), decode=_fnuz,
    ),
    fault(
        "keys-read-as-e5m2", "indexer_scores", "e4m3 codes are read as e5m2.", "", "element",
        options=("dtype=e4m3",), decode=_e5m2,
    ),
)
