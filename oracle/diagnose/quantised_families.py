"""Hypotheses about quantised caches: from where in a row, page or cache codes, scales and rotated dims are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.simulated.latent import LatentSites, tiles_of
from ..faults.wrapped import packed_strides, reread
from .expectation import cache_rows
from .hypothesis import Hypothesis
from .observation import Observation

#: Bytes of a cache that is copied to be read otherwise.
MOST = 2**24
#: Bytes between the strides that are tried, and how many beside the right one.
STEP, STEPS = 16, 6


def quantised(seen: Observation) -> Iterator[Hypothesis]:
    """One part of a row taken from another row, or with another stride."""
    a = seen.arguments
    if a.get("cache_format", "model") == "model":
        return
    yield from _addresses(seen)
    if a["cache_format"] == "fp8_ds_mla":
        yield from _tiles(seen)
        yield from _parts(seen)


def _latent(seen: Observation, idea: str, words: str, **sites: Any) -> Hypothesis:
    kernel = simulated(seen.operator, latent=LatentSites(**sites))
    return Hypothesis(idea, "quantised cache", words, kernel, 1, fixed=True)


def _wrapping(stride: int, bits: int) -> Callable[[Tensor, int], Tensor]:
    return lambda row, n: ((row.long() * stride) & ((1 << bits) - 1)) // stride % n


def _addresses(seen: Observation) -> Iterator[Hypothesis]:
    kv = seen.arguments["kv"]
    stride = max(1, kv.stride(-2))
    for bits in (31, 32):
        wraps = _wrapping(stride, bits)
        yield Hypothesis(
            "cache row address", "gather", f"Row times stride keeps {bits} bits.",
            simulated(seen.operator, address=wraps), 1, fixed=True,
        )  # fmt: skip
        yield _latent(
            seen, "rope of a cache row", f"Row times stride keeps {bits} bits for the rotated dims.", rope_row=wraps
        )
        yield _latent(seen, "scales of a cache row", f"Row times stride keeps {bits} bits for scales.", scale_row=wraps)
    if kv.dim() == 3 and kv.stride(0) != kv.shape[1] * kv.stride(1):
        changed = reread(kv, packed_strides(kv.shape)) if kv.numel() <= MOST else kv
        yield Hypothesis(
            "cache row address", "gather", "Pages are taken to follow one another.",
            lambda **a: simulated(seen.operator)(**{**a, "kv": changed}), 1, fixed=True,
        )  # fmt: skip


def _tiles(seen: Observation) -> Iterator[Hypothesis]:
    page = seen.arguments["kv"].shape[-2] if seen.arguments["kv"].dim() == 3 else cache_rows(seen.arguments)
    rows: dict[str, Callable[[Tensor, int], Tensor]] = {
        "its neighbour on the page": lambda row, n: (row ^ 1).clamp(max=n - 1),
        "the row before": lambda row, n: (row - 1) % n,
        "the next row": lambda row, n: (row + 1) % n,
        "the first row of its page": lambda row, n: row // page * page,
    }
    for words, row in rows.items():
        yield _latent(seen, "scales of a cache row", f"A row has the scales of {words}.", scale_row=row)
        yield _latent(seen, "rope of a cache row", f"A row has the rotated dims of {words}.", rope_row=row)
    plain: Callable[[Tensor, Tensor], Tensor] = lambda codes, scales: codes  # noqa: E731
    whole = LatentSites().dequantise
    yield _latent(
        seen, "tile scale on one side", "Values are used without their scale, keys with it.", value_tiles=plain
    )
    yield _latent(
        seen, "tile scale on one side", "Keys are used without their scale, values with it.",
        dequantise=plain, value_tiles=whole,
    )  # fmt: skip
    yield _latent(
        seen, "tiles of a cache row", "Neighbouring values are taken to belong to different tiles.",
        dequantise=lambda codes, scales: codes * _interleaved(codes, scales),
    )  # fmt: skip


def _interleaved(codes: Tensor, scales: Tensor) -> Tensor:
    """The scale of tile i mod tiles for value i, in the shape of the codes [..., tiles, tile]."""
    tiles, size = codes.shape[-2:]
    which = torch.arange(tiles * size) % tiles
    return scales[..., which].view(*scales.shape[:-1], tiles, size)


def _parts(seen: Observation) -> Iterator[Hypothesis]:
    """Scales and rotated dims of a slot looked for with another stride, or among the codes."""
    a = seen.arguments
    kv, c = a["kv"], int(a["value_dim"])
    if kv.numel() > MOST:
        return
    at = c + 4 * tiles_of(c)
    width = kv.stride(-2)
    parts = {"scales": (c, at), "rope": (at, kv.shape[-1])}
    strides = [c, at, *(width + STEP * n for n in range(-STEPS, STEPS + 1) if n)] if kv.dim() == 3 else []
    for what, (first, stop) in parts.items():
        told = {"scales": "Scales", "rope": "Rotated dims"}[what]
        for stride in dict.fromkeys(strides):
            yield _replaced(
                seen, f"{what} of a cache row", f"{told} of a slot are looked for {stride} bytes apart, not {width}.",
                slice(first, stop), partial(_restrided, kv, stride, first, stop),
            )  # fmt: skip
    r = (kv.shape[-1] - at) // 2
    for stride in (width, width // 2):
        yield _replaced(
            seen, "rope of a cache row", f"Rotated dims are read from the codes, {stride} bytes apart.",
            slice(at, kv.shape[-1]), partial(_codes_as_bf16, kv, stride, r),
        )  # fmt: skip


def _replaced(seen: Observation, idea: str, words: str, columns: slice, part: Callable[[], Tensor]) -> Hypothesis:
    def predict(**a: Any) -> tuple[Any, ...]:
        kv = a["kv"].clone()
        kv.view(torch.uint8)[..., columns] = part().view(*kv.shape[:-1], -1)
        return simulated(seen.operator)(**{**a, "kv": kv})

    return Hypothesis(idea, "quantised cache", words, predict, 2, fixed=True)


def _restrided(kv: Tensor, stride: int, first: int, stop: int) -> Tensor:
    """Bytes ``first`` to ``stop`` of every row, if rows (of a page) were ``stride`` bytes apart; stays in the cache."""
    flat = kv.view(torch.uint8)
    pages = flat if flat.dim() == 3 else flat[None]
    size = pages.shape[1]
    base = torch.arange(pages.shape[0])[:, None, None] * pages.stride(0) + torch.arange(size)[:, None] * stride
    place = base + torch.arange(first, stop)
    last = (pages.shape[0] - 1) * pages.stride(0) + (size - 1) * pages.stride(1) + pages.shape[2]
    memory = pages.as_strided((last,), (1,), pages.storage_offset())
    return memory[place.clamp(max=last - 1)]


def _codes_as_bf16(kv: Tensor, stride: int, r: int) -> Tensor:
    """The first ``r`` codes of every row as numbers in bf16, as bytes."""
    return _restrided(kv, stride, 0, r).contiguous().view(torch.float8_e4m3fn).float().bfloat16().view(torch.uint8)
