"""Attention calls whose keys were chosen anew: reordered, repeated, left out, split in two."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...reference.masked_mha import unpack_bits
from .call import Answer, Arguments, Call
from .claim import DoesNotApply

#: Where every key may be seen: packed attention without its causal mask, a selection without lengths and sink.
OPEN = "open"
FREE = "free"
#: Values on this grid, at most 2 in size, stay exact in every format when a few of them are added or exchanged.
STEP, MOST = 0.25, 2.0


def packed(call: Call) -> bool:
    """Whether keys lie packed by request (dense and masked MHA) or are selected from a cache."""
    return call.name != "sparse_mqa"


def opened(call: Call) -> tuple[dict[str, Any], Answer]:
    """The call with every key of a request, or every selected row, in sight."""
    return call.remembered(OPEN, lambda: open_arguments(call))


def open_arguments(call: Call) -> dict[str, Any]:
    a = call.given()
    if packed(call):
        if a["causal"]:
            call.with_option("noncausal")
            a["causal"] = False
        return a
    a["indices"] = counted_indices(a)
    a.pop("lengths", None)
    a.pop("sink", None)
    return a


def freed(call: Call) -> tuple[dict[str, Any], Answer]:
    """The open call on coarse numbers, the values in no score: they may be changed alone, and exactly."""
    return call.remembered(FREE, lambda: free_arguments(call))


def free_arguments(call: Call) -> dict[str, Any]:
    a = open_arguments(call)
    if packed(call):
        for name in ("q", "k", "v"):
            a[name] = coarse(a[name])
        return a
    require_model_cache(a)
    a["q"], a["kv"] = coarse(a["q"]), coarse(a["kv"])
    a["q"][..., : a["value_dim"]] = 0.0
    return a


def require_model_cache(a: Arguments) -> None:
    if a["kv"].dtype.itemsize == 1 or a["q"].dtype.itemsize == 1:
        raise DoesNotApply("its cache is quantised: changed values would be rounded")


def coarse(x: Tensor) -> Tensor:
    """Values rounded to the grid; NaN stay."""
    return (x.float() / STEP).round().mul(STEP).clamp(-MOST, MOST).to(x.dtype)


def values_of(call: Call, a: Arguments) -> Tensor:
    """[keys,h,v], or the latent part [n,c] of a cache."""
    values: Tensor = a["v"] if packed(call) else a["kv"][..., : a["value_dim"]]
    return values


def with_values(call: Call, a: Arguments, values: Tensor) -> dict[str, Any]:
    if packed(call):
        return {**a, "v": values.to(a["v"].dtype)}
    kv = a["kv"].clone()
    kv[..., : a["value_dim"]] = values.to(kv.dtype)
    return {**a, "kv": kv}


def counted_indices(a: Arguments) -> Tensor:
    """Indices with -1 where an entry lies beyond the row's length."""
    indices: Tensor = a["indices"]
    if a.get("lengths") is None:
        return indices
    slots = torch.arange(indices.shape[1], device=indices.device)
    return torch.where(slots < a["lengths"][:, None], indices, -1)


def spans(cu: Tensor) -> list[tuple[int, int]]:
    return list(pairwise(cu.tolist()))


def visible(call: Call, a: Arguments) -> Tensor:
    """bool [s,t]: which query counts which key of the packed ones, or which row of the cache."""
    q: Tensor = a["q"]
    if not packed(call):
        rows = a["kv"].shape[:-1].numel()
        indices = counted_indices(a)
        valid = (indices >= 0) & (indices < rows)
        seen = torch.zeros(len(q), rows + 1, dtype=torch.bool, device=q.device)
        seen.scatter_(1, torch.where(valid, indices, rows).long(), True)
        return seen[:, :rows]
    seen = torch.zeros(len(q), len(a["k"]), dtype=torch.bool, device=q.device)
    for request, ((q0, q1), (k0, k1)) in enumerate(zip(spans(a["cu_q"]), spans(a["cu_k"]), strict=True)):
        block = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=q.device)
        if a["causal"]:
            block = block.tril(k1 - k0 - (q1 - q0))
        if "mask" in a:
            block &= unpack_bits(a["mask"][request, : q1 - q0], k1 - k0)
        seen[q0:q1, k0:k1] = block
    return seen


def packed_bits(allowed: Tensor) -> Tensor:
    """int32 words [b,rows,w] of bits [b,rows,t], least significant first, w a multiple of four."""
    short = -allowed.shape[-1] % 128
    padded = torch.nn.functional.pad(allowed, (0, short))
    bits = padded.view(*padded.shape[:-1], -1, 32).long()
    words = (bits << torch.arange(32, device=allowed.device)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def regrouped(a: Arguments, keys: list[Tensor]) -> dict[str, Any]:
    """Packed attention whose request r has the keys ``keys[r]`` of its old ones, counted from 0, in that order."""
    starts = a["cu_k"].tolist()
    chosen = torch.cat([start + own for start, own in zip(starts, keys, strict=False)])
    counts = torch.tensor([0, *(len(own) for own in keys)], device=chosen.device)
    changed = {**a, "k": a["k"][chosen], "v": a["v"][chosen], "cu_k": counts.cumsum(0).to(a["cu_k"].dtype)}
    if "mask" in a:
        old = unpack_bits(a["mask"], a["mask"].shape[-1] * 32)
        longest = max((len(own) for own in keys), default=0)
        bits = torch.zeros(*old.shape[:2], longest, dtype=torch.bool, device=old.device)
        for request, own in enumerate(keys):
            bits[request, :, : len(own)] = old[request][:, own]
        changed["mask"] = packed_bits(bits)
    return changed


def key_counts(a: Arguments) -> list[int]:
    return [end - start for start, end in spans(a["cu_k"])]


def every_key(a: Arguments) -> list[Tensor]:
    device = a["k"].device
    return [torch.arange(count, device=device) for count in key_counts(a)]


def halves(call: Call, a: Arguments) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two calls that share out the keys of ``a``: every other key to each."""
    if packed(call):
        if "mask" not in a:
            return regrouped(a, [own[::2] for own in every_key(a)]), regrouped(a, [own[1::2] for own in every_key(a)])
        even = torch.full_like(a["mask"], 0x55555555)
        return {**a, "mask": a["mask"] & even}, {**a, "mask": a["mask"] & ~even}
    slots = torch.arange(a["indices"].shape[1], device=a["indices"].device)
    first = torch.where(slots % 2 == 0, a["indices"], -1)
    return {**a, "indices": first}, {**a, "indices": torch.where(slots % 2 == 1, a["indices"], -1)}


def shuffled(count: int, seed: int, device: torch.device) -> Tensor:
    """A permutation by the seed; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator).to(device)
