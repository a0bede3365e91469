"""Quantised latent caches as an implementation finds them in memory: views of rows without copies, and refusals.

    fp8_e4m3     c + r codes a row; one scale for the whole cache
    fp8_ds_mla   c codes, an fp32 scale for each tile of 128, r rotated dims in bf16

Rows come as [n, width] or as pages [p, page, width]. Values are looked at on the CPU alone, where that costs no wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .pages import check_scales
from .triton_kernels.checks import check_at_least, check_tensor

#: Formats whose rows are bytes.
QUANTISED = ("fp8_e4m3", "fp8_ds_mla")
TILE = 128
#: Rows begin at multiples of so many bytes: their scales are read as fp32.
ALIGNMENT = 4


@dataclass(frozen=True, slots=True)
class SparseCall:
    """The arguments of ``sparse_mqa`` but for the softmax scale."""

    q: Tensor
    kv: Tensor
    indices: Tensor
    value_dim: int
    lengths: Tensor | None
    sink: Tensor | None
    cache_format: str
    q_scale: float
    k_scale: float


@dataclass(frozen=True, slots=True)
class Views:
    """Parts of the rows, each [p, page, ...]; a cache without pages has pages of one row."""

    codes: Tensor
    """float8_e4m3fn [p, page, c]"""
    scales: Tensor | None
    """fp32 [p, page, tiles]; None where one scale serves the cache."""
    rope: Tensor
    """[p, page, r]: bf16, or float8_e4m3fn where these are codes too."""

    @property
    def rows(self) -> int:
        return self.codes.size(0) * self.codes.size(1)


def tiles_of(c: int) -> int:
    """Scales of a row of fp8_ds_mla. Raises ValueError for a latent that has no whole number of tiles."""
    if c % 4 or (c > TILE and c % TILE):
        raise ValueError(f"value_dim: expected a multiple of {TILE}, or less and a multiple of 4, got {c}")
    return max(1, c // TILE)


def row_bytes(cache_format: str, c: int, r: int) -> int:
    """Width of a quantised row."""
    return c + r if cache_format == "fp8_e4m3" else c + 4 * tiles_of(c) + 2 * r


def views(call: SparseCall) -> Views:
    """The parts of the rows of a quantised cache."""
    kv = call.kv if call.kv.dim() == 3 else call.kv.unsqueeze(1)
    c, width = call.value_dim, call.q.size(2)
    if call.cache_format == "fp8_e4m3":
        codes = kv.view(torch.float8_e4m3fn)
        return Views(codes[..., :c], None, codes[..., c:width])
    rope_at = c + 4 * tiles_of(c)
    return Views(
        kv[..., :c].view(torch.float8_e4m3fn),
        kv[..., c:rope_at].view(torch.float32),
        kv[..., rope_at:].view(torch.bfloat16),
    )


def require_model(cache_format: str, q_scale: float, k_scale: float) -> None:
    """Raises ValueError, in an implementation that decodes nothing, for a quantised cache or scales."""
    if (cache_format, q_scale, k_scale) != ("model", 1.0, 1.0):
        raise ValueError(
            f"cache_format, q_scale, k_scale: expected a cache of the model's dtype and no scales, "
            f"got {cache_format!r}, {q_scale} and {k_scale}"
        )


def check_quantised(call: SparseCall) -> None:
    """Raises ValueError unless the call fits its format."""
    q, kv = call.q, call.kv
    if call.cache_format not in QUANTISED:
        raise ValueError(f"cache_format: expected model, {' or '.join(QUANTISED)}, got {call.cache_format!r}")
    plain = call.cache_format == "fp8_e4m3"
    check_tensor("q", q, "[s, h, c+r]", (None,) * 3, (torch.float8_e4m3fn if plain else torch.bfloat16,), q.device)
    s, h, width = q.shape
    c = call.value_dim
    if not 1 <= c <= width:
        raise ValueError(f"value_dim: expected 1 to {width}, the width of q, got {c}")
    check_at_least("heads", h, 1)
    size = row_bytes(call.cache_format, c, width - c)
    sizes, letters = ((None, None, size), "[p, page, bytes]") if kv.dim() == 3 else ((None, size), "[n, bytes]")
    check_tensor("kv", kv, letters, sizes, (torch.uint8, torch.float8_e4m3fn) if plain else (torch.uint8,), q.device)
    if not plain:
        _check_alignment(kv)
    check_tensor("indices", call.indices, "[s, k]", (s, None), (torch.int32,), q.device)
    if call.lengths is not None:
        check_tensor("lengths", call.lengths, "[s]", (s,), (torch.int32,), q.device)
    if call.sink is not None:
        check_tensor("sink", call.sink, "[h]", (h,), (torch.float32,), q.device)
    for name, value in (("q_scale", call.q_scale), ("k_scale", call.k_scale)):
        if not (value > 0.0 and math.isfinite(value)):
            raise ValueError(f"{name}: expected a finite scale above 0, got {value}")
    if not plain and (call.q_scale, call.k_scale) != (1.0, 1.0):
        raise ValueError(f"q_scale, k_scale: expected 1 for fp8_ds_mla, got {call.q_scale} and {call.k_scale}")
    if not plain and kv.device.type == "cpu":
        _check_tile_scales(call)


def _check_alignment(kv: Tensor) -> None:
    apart = [stride for stride, extent in zip(kv.stride()[:-1], kv.shape[:-1], strict=True) if extent > 1]
    if kv.data_ptr() % ALIGNMENT or any(stride % ALIGNMENT for stride in apart):
        raise ValueError(
            f"kv: expected rows and pages at multiples of {ALIGNMENT} bytes, got strides {list(kv.stride())} from "
            f"{kv.data_ptr() % ALIGNMENT} mod {ALIGNMENT}"
        )


def _check_tile_scales(call: SparseCall) -> None:
    held = views(call)
    assert held.scales is not None
    used = (call.indices >= 0) & (call.indices < held.rows)
    if call.lengths is not None:
        used &= torch.arange(used.shape[1], device=used.device) < call.lengths[:, None]
    rows = call.indices[used].long()
    page = held.codes.size(1)
    check_scales("kv scales", held.scales[rows // page, rows % page])
