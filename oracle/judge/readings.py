"""Inputs as a kernel with another convention reads them: each function returns what it changes, or None.

None means that the reading does not apply to the operator or is the same on these inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .units import LN2

Arguments = Mapping[str, Any]
Changed = dict[str, Any] | None

#: LSE of a query without keys by the contract's word for it.
EMPTY = {"-inf": -math.inf, "+inf": math.inf, "nan": math.nan, "zero": 0.0}


def base_two(a: Arguments) -> Changed:
    """2^s for e^s."""
    return {"scale": a["scale"] * LN2} if "scale" in a else None


def base_two_twice(a: Arguments) -> Changed:
    return {"scale": a["scale"] / LN2} if "scale" in a else None


def scale_of_width(a: Arguments) -> Changed:
    if "scale" not in a:
        return None
    scale = float(a["q"].shape[-1]) ** -0.5
    return None if math.isclose(scale, a["scale"], rel_tol=1e-6) else {"scale": scale}


def top_left(a: Arguments) -> Changed:
    """Query i sees keys j <= i: of a request with more keys than queries the first as many keys, bottom-right."""
    if "cu_q" not in a or not a.get("causal", True):
        return None
    cu_q, cu_k = a["cu_q"].tolist(), a["cu_k"].tolist()
    queries = [stop - start for start, stop in itertools.pairwise(cu_q)]
    keys = [stop - start for start, stop in itertools.pairwise(cu_k)]
    if queries == keys or any(q > k for q, k in zip(queries, keys, strict=True)):
        return None
    kept = [torch.arange(start, start + q) for start, q in zip(cu_k, queries, strict=False)]
    place = torch.cat(kept).to(a["k"].device)
    return {"k": a["k"][place], "v": a["v"][place], "cu_k": a["cu_q"].clone()}


def words_reversed(a: Arguments) -> Changed:
    """Bit 31 - j for bit j."""
    if "mask" not in a:
        return None
    words = a["mask"].long()
    found = torch.zeros_like(words)
    for bit in range(32):
        found |= ((words >> bit) & 1) << (31 - bit)
    return {"mask": _int32(found)}


def bytes_reversed(a: Arguments) -> Changed:
    """Bit 7 - j of each byte for its bit j."""
    if "mask" not in a:
        return None
    words = a["mask"].long()
    found = torch.zeros_like(words)
    for bit in range(32):
        found |= ((words >> bit) & 1) << (bit // 8 * 8 + 7 - bit % 8)
    return {"mask": _int32(found)}


def _int32(words: Tensor) -> Tensor:
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def sink_base_two(a: Arguments) -> Changed:
    return None if a.get("sink") is None else {"sink": a["sink"] * LN2}


def _slots(a: Arguments) -> tuple[Tensor, int, Tensor] | None:
    """Indices [s,k], rows of the cache and which slots count by their place; None for another operator."""
    if "indices" not in a or "kv" not in a or not a["indices"].numel():
        return None
    indices: Tensor = a["indices"]
    inside = torch.ones_like(indices, dtype=torch.bool)
    if a.get("lengths") is not None:
        inside = torch.arange(indices.shape[1], device=indices.device) < a["lengths"][:, None]
    return indices, a["kv"].shape[0], inside


def _changed(a: Arguments, indices: Tensor, where: Tensor) -> Changed:
    return {"indices": torch.where(where, indices, a["indices"])} if bool(where.any()) else None


def relative(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, _ = slots
    valid = (indices >= 0) & (indices < rows)
    return _changed(a, indices - torch.where(valid, indices, rows).amin(1, keepdim=True), valid)


def one_based(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, _ = slots
    return _changed(a, indices - 1, (indices >= 0) & (indices < rows))


def wrapped(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, inside = slots
    return _changed(a, indices + rows, inside & (indices < 0) & (indices >= -rows))


def last_row(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, inside = slots
    return _changed(a, torch.full_like(indices, rows - 1), inside & (indices == -1))


def row_zero(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, inside = slots
    return _changed(a, torch.zeros_like(indices), inside & ((indices < 0) | (indices >= rows)))


def clamped(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, inside = slots
    return _changed(a, torch.full_like(indices, rows - 1), inside & (indices >= rows))


def collapsed(a: Arguments) -> Changed:
    slots = _slots(a)
    if slots is None:
        return None
    indices, rows, inside = slots
    counts = inside & (indices >= 0) & (indices < rows)
    marked = torch.where(counts, indices, -1)
    ordered, order = marked.sort(dim=1, stable=True)
    again = torch.zeros_like(counts)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    return _changed(a, torch.full_like(indices, -1), torch.zeros_like(counts).scatter_(1, order, again))


def all_slots(a: Arguments) -> Changed:
    return {"lengths": None} if a.get("lengths") is not None else None


def nan_lowest(a: Arguments) -> Changed:
    if "scores" not in a or not bool(a["scores"].isnan().any()):
        return None
    return {"scores": torch.where(a["scores"].isnan(), -math.inf, a["scores"])}
