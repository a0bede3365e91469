"""NaN among the bytes of a cache: which bytes spell one, so that any NaN counts as equal to any other.

A conversion may give a NaN of its own: 7F or FF in e4m3; in bf16 the hardware's 7FFF, where PyTorch has 7FC0. Only
bytes that the call has to write are looked at; all others have to stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def counting(a: Mapping[str, Any], expected: Tensor, observed: Tensor, written: Tensor) -> Tensor | None:
    """Which bytes have to agree: all but those that spell NaN on both sides; None: not a cache of bytes.

    a: keywords of ``write_cache`` or ``write_index``    expected, observed: the cache, or its last pages
    written: bool [rows], the rows that the call writes
    """
    if expected.dtype is not torch.uint8:
        return None
    counts = torch.ones_like(expected, dtype=torch.bool)
    if "pages" in a:  # codes first, a row of them a place
        e = a["k"].shape[1]
        codes = len(written) // max(1, len(expected)) * e
        right, seen = (x[:, :codes].reshape(-1, e) for x in (expected, observed))
        counts[:, :codes] = _unlike(right, seen, written, codes=e, rope=e).view(-1, codes)
        return counts
    width, r = expected.shape[-1], a["rope"].shape[1]
    tiles = a["cache_format"] == "fp8_ds_mla"
    codes, rope = (a["latent"].shape[1], width - 2 * r) if tiles else (width, width)
    right, seen = expected.flatten(0, 1), observed.flatten(0, 1)
    return _unlike(right, seen, written, codes=codes, rope=rope).view(expected.shape)


def _unlike(expected: Tensor, observed: Tensor, written: Tensor, *, codes: int, rope: int) -> Tensor:
    """bool [rows, width]; a row begins with ``codes`` codes and has bf16 numbers from byte ``rope`` on."""
    return ~(_nan(expected, codes, rope) & _nan(observed, codes, rope) & written[:, None])


def _nan(rows: Tensor, codes: int, rope: int) -> Tensor:
    found = torch.zeros_like(rows, dtype=torch.bool)
    found[:, :codes] = rows[:, :codes] & 127 == 127
    halves = rows[:, rope:].reshape(len(rows), (rows.shape[1] - rope) // 2, 2).to(torch.int32)
    bits = halves[..., 0] | halves[..., 1] << 8
    found[:, rope:] = (bits & 0x7FFF > 0x7F80).repeat_interleave(2, 1)
    return found
