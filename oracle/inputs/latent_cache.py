"""The rows of quantised latent caches: values become bytes here, and poison is made of bytes of its own.

    fp8_e4m3     codes of value / k_scale
    fp8_ds_mla   codes of value / scale of its tile of 128, the scales, the rotated dims in bf16

What is drawn is quantised once; the judge reads the bytes, so rounding here is no error of anybody. A tile's scale is
amax / 448, by a coin flip up to twice that, so that rows use the largest code and rows do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..case import Case
from . import rng
from .attention import Form
from .batch import Tokens
from .poison import poison

#: Values that share a scale, and the least scale, as in vLLM's writer.
TILE = 128
LEAST_SCALE = 1e-4
#: Neighbouring tiles differ by this factor under ``wide-scales``.
STEP = 32.0
#: Rows a page.
PAGE = 64


def tiles_of(form: Form) -> int:
    """Tiles of the latent part of a row."""
    return max(1, form.value_width // TILE)


def row_width(cache_format: str, form: Form) -> int:
    """Elements of a row: numbers of the model's dtype, or bytes."""
    if cache_format != "fp8_ds_mla":
        return form.width
    return form.value_width + 4 * tiles_of(form) + 2 * (form.width - form.value_width)


def whole_scales(case: Case) -> tuple[float, float]:
    """q_scale and k_scale of ``fp8_e4m3``, near 1/12 (values up to about 40); powers of two for exact kinds alone."""
    drawn = [rng.key(case.seed, name) % 1009 / 1009 for name in ("q-scale", "k-scale")]
    exact = case.kind == "grid"
    q_scale, k_scale = (0.0625 if exact else 0.0625 * (1 + u) for u in drawn)
    return (float(torch.tensor(q_scale)), float(torch.tensor(k_scale)))


def stretched(case: Case) -> float:
    """What q_scale is multiplied and k_scale divided by in kind ``powers``: one of them is far above 1, k_scale where
    rows come one by one."""
    return 1.0 if case.kind != "powers" else 2.0 ** (10 if "pages" in case.options else -10)


def tile_steps(case: Case, form: Form, device: torch.device) -> Tensor:
    """Factor of each value column that ``wide-scales`` asks for; fp32 [c + r], ones otherwise."""
    column = torch.arange(form.width, device=device)
    tile = torch.where(column < form.value_width, column // TILE, 0).to(torch.float32)
    return STEP**-tile if "wide-scales" in case.options else torch.ones_like(tile)


def encoded(case: Case, cache_format: str, form: Form, tokens: Tokens, values: Tensor, k_scale: float) -> Tensor:
    """Rows uint8 [m, width] of values fp32 [m, c+r]."""
    if cache_format == "fp8_e4m3":
        return rng.cast(values / k_scale, torch.float8_e4m3fn).view(torch.uint8)
    c, count = form.value_width, len(values)
    tiles = (values * tile_steps(case, form, values.device))[:, :c].reshape(count, tiles_of(form), -1)
    place = (tokens.name[:, None], tokens.position[:, None], torch.arange(tiles.shape[1], device=values.device))
    if "zero-tiles" in case.options:
        zero = rng.integers(rng.key(case.seed, "zero-tiles"), 3, *place) == 0
        tiles = torch.where(zero[..., None], 0.0, tiles)
    scales = tiles.abs().amax(-1) / 448.0
    room = rng.uniform(rng.key(case.seed, "tile-scales"), *place) * rng.integers(rng.key(case.seed, "full"), 2, *place)
    scales = (scales * (1 + room)).clamp_min(LEAST_SCALE * float(tile_steps(case, form, values.device).min()))
    if "pow2-scales" in case.options or case.kind == "grid":
        mantissa, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), torch.where(mantissa == 0.5, exponent - 1, exponent))
    return _row(tiles / scales[..., None], scales, values[:, c:])


def poisoned(name: str, case: Case, cache_format: str, form: Form, number: Tensor) -> Tensor:
    """Rows uint8 [m, width] that nobody references."""
    codes = poison(name, case.seed, "kv", form.width, torch.float8_e4m3fn)(number)
    if cache_format == "fp8_e4m3":
        return rng.cast(codes, torch.float8_e4m3fn).view(torch.uint8)
    scales = poison(name, case.seed, "kv-scale", tiles_of(form), torch.float32)(number).abs()
    rope = poison(name, case.seed, "kv-rope", form.width - form.value_width, torch.bfloat16)(number)
    return _row(codes[:, : form.value_width].reshape(len(number), tiles_of(form), -1), scales, rope)


def _row(codes: Tensor, scales: Tensor, rope: Tensor) -> Tensor:
    parts = (rng.cast(codes.flatten(1), torch.float8_e4m3fn), scales, rope.to(torch.bfloat16))
    return torch.cat([part.contiguous().view(torch.uint8).view(len(part), -1) for part in parts if part.shape[1]], 1)
