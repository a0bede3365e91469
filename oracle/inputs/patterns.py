"""Which keys each query is given: index rows of sparse MQA and bit masks of masked MHA.

Positions are request-local here; ``rows_of`` turns them into rows of the cache. The patterns follow what broke kernels
in public: a leading run of -1 (vllm#48366), -1 inside the valid prefix (sglang#30645), out-of-range values and lengths
(FlashMLA's tests), rows without any key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import rng
from .attention import EDGES
from .batch import Tokens

INDEX_PATTERNS: dict[str, str] = {
    "causal-random": "distinct keys of the causal prefix in random order, -1 after them",
    "leading": "at least half the slots -1, first",
    "interleaved": "at least half the slots -1, scattered",
    "trailing": "at least half the slots -1, last",
    "invalid": "at least half the slots invalid and scattered: INT_MIN, -123456, -1, n, n+1, n+114514, INT_MAX",
    "duplicates": "keys drawn with replacement from few, each counting every time",
    "islands": "as leading, but every second tile of 64 slots is -1, and has tiles with keys on both sides",
    "prefix": "the first keys, ascending",
    "window": "the last visible keys, ascending",
    "overlapping": "runs of 64 queries share three keys in four, drawn from what the first of them sees",
}
MASK_PATTERNS: dict[str, str] = {
    "causal-random": "top-k distinct keys of the causal prefix",
    "dense-mask": "every bit set, above the diagonal as well: causality is the kernel's to apply",
    "prefix": "the first top-k keys",
    "window": "the last top-k visible keys",
    "overlapping": "runs of 64 queries share three keys in four of their top-k",
    "blocks": "whole tiles of 64 and 128 keys empty, half the bits of the others set",
}
_INT_MAX = 2**31 - 1
#: Slots in a tile of ``islands``.
TILE = 64
#: Queries in a row that share most of their keys under ``overlapping``, and how many in four they share.
_RUN, _SHARED = 64, 3
_ALL = 0xFFFFFFFF


def positions(pattern: str, seed: int, slots: int, q: Tokens, visible: Tensor) -> Tensor:
    """Request-local key positions, int64 [m, slots], -1 for no key. ``visible`` [m]: keys each query may see."""
    stream = rng.key(seed, "positions")
    slot = torch.arange(slots, device=visible.device)
    seen = visible.unsqueeze(-1)
    if pattern == "prefix":
        return torch.where(slot < seen, slot, -1)
    if pattern == "window":
        return torch.where(slot < seen, (seen - slots).clamp(min=0) + slot, -1)
    if pattern == "duplicates":
        few = (seen.clamp(max=max(2, slots // 2)),)
        drawn = rng.integers(stream, few[0], q.name[:, None], q.position[:, None], slot)
        return torch.where(seen > 0, seen - 1 - drawn, -1)
    if pattern == "overlapping":
        return _overlapping(seed, slots, q, visible)
    half = slots if pattern == "causal-random" else (slots + 1) // 2
    chosen = _with_edges(rng.distinct(stream, half, visible, q.name, q.position), visible)
    chosen = torch.nn.functional.pad(chosen, (0, slots - half), value=-1)
    order = _order(pattern, rng.key(seed, "slots"), chosen, q)
    return torch.gather(chosen, 1, order)


def _overlapping(seed: int, slots: int, q: Tokens, visible: Tensor) -> Tensor:
    """Each slot draws from one stratum of what the first query of the run sees, so that no key comes twice."""
    start = q.position - q.position % _RUN
    first = (visible - (q.position - start)).clamp(min=0)
    own = rng.distinct(rng.key(seed, "own"), slots, first, q.name, q.position)
    common = rng.distinct(rng.key(seed, "run"), slots, first, q.name, start)
    slot = torch.arange(slots, device=visible.device)
    shares = rng.integers(rng.key(seed, "shares"), 4, q.name[:, None], q.position[:, None], slot) < _SHARED
    return torch.where(shares, common, own)


def _with_edges(chosen: Tensor, visible: Tensor) -> Tensor:
    """Swaps in the tile-edge keys that a row may see, each into the stratum it belongs to."""
    length, slots = visible.unsqueeze(-1), chosen.shape[1]
    taken = length.clamp(max=slots)
    for place in (*EDGES[:0:-1], 0, -1):
        edge = length - 1 if place < 0 else torch.full_like(length, place)
        column = ((edge + 1) * taken - 1) // length.clamp(min=1)
        fits = (edge < length) & (edge >= 0)
        column = column.clamp(0, slots - 1)
        chosen.scatter_(1, column, torch.where(fits, edge, torch.gather(chosen, 1, column)))
    return chosen


def _order(pattern: str, stream: int, chosen: Tensor, q: Tokens) -> Tensor:
    """The order in which a row's slots show its keys; the outermost keys lie on tile-edge slots where that is free."""
    device, slots = chosen.device, chosen.shape[1]
    slot = torch.arange(slots, device=device)
    keys = rng.bits(stream, q.name[:, None], q.position[:, None], slot) >> 1
    half = 1 << 62
    if pattern == "leading":
        return torch.argsort(torch.where(chosen < 0, keys - half, keys + half), dim=1, stable=True)
    if pattern in ("interleaved", "invalid"):
        return torch.argsort(keys, dim=1, stable=True)
    order = torch.argsort(torch.where(chosen < 0, keys + half, keys - half), dim=1, stable=True)
    if pattern == "islands":
        return order.scatter(1, torch.argsort((slot // TILE) % 2, stable=True).expand_as(order), order.clone())
    used = (chosen >= 0).sum(1, keepdim=True)
    for rank, place in enumerate((0, -1, *EDGES[1:])):
        target = used - 1 if place < 0 else torch.full_like(used, place)
        # Strata from both ends in turn: the last key meets the first slot, the first key the last one.
        wanted = used - 1 - rank // 2 if rank % 2 == 0 else torch.full_like(used, rank // 2)
        ok = (target >= 0) & (target < used) & (wanted >= 0) & (wanted < used)
        _swap(order, wanted, target, ok)
    return order


def _swap(order: Tensor, wanted: Tensor, target: Tensor, ok: Tensor) -> None:
    """Brings column ``wanted`` [m, 1] to slot ``target`` [m, 1] of each row where ``ok``."""
    place = torch.argmax((order == wanted).to(torch.int8), dim=1, keepdim=True)
    target = torch.where(ok, target, place)
    moved, displaced = torch.gather(order, 1, place), torch.gather(order, 1, target)
    order.scatter_(1, place, displaced)
    order.scatter_(1, target, moved)


def empty_rows(seed: int, q: Tokens) -> Tensor:
    """Rows that get no key at all: one in four, and the first query of every request; bool [m]."""
    return (rng.integers(rng.key(seed, "empty-rows"), 4, q.name, q.position) == 0) | (q.position == 0)


def invalid_values(seed: int, rows: int, q: Tokens, slots: int) -> Tensor:
    """int64 [m, slots] values that name no row of a cache of ``rows`` rows."""
    values = [-(2**31), -123456, -1, rows, rows + 1, rows + 114514, _INT_MAX]
    table = torch.tensor(values, device=q.name.device)
    slot = torch.arange(slots, device=q.name.device)
    return table[rng.integers(rng.key(seed, "invalid"), len(values), q.name[:, None], q.position[:, None], slot)]


def lengths(seed: int, slots: int, q: Tokens) -> Tensor:
    """How many slots count in each row, int64 [m]: 0, 1, all, or any number."""
    choice = rng.integers(rng.key(seed, "lengths-choice"), 4, q.name, q.position)
    anywhere = rng.integers(rng.key(seed, "lengths"), slots + 1, q.name, q.position)
    fixed = torch.tensor([0, min(1, slots), slots], device=choice.device)
    return torch.where(choice < 3, fixed[choice.clamp(max=2)], anywhere)


def mask_words(pattern: str, seed: int, topk: int, q: Tokens, visible: Tensor, words: int) -> Tensor:
    """Unpacked mask rows, int64 [m, words], each word in 0..2**32-1; bits beyond the keys are left as they fall."""
    device = visible.device
    word = torch.arange(words, device=device)
    if pattern == "dense-mask":
        return torch.full((len(visible), words), _ALL, device=device)
    if pattern == "blocks":
        place = (q.name[:, None], q.position[:, None])
        drawn = rng.bits(rng.key(seed, "mask"), *place, word) & _ALL
        tile = rng.integers(rng.key(seed, "mask-tiles"), 3, *place, word // 4) > 0
        half = rng.integers(rng.key(seed, "mask-halves"), 4, *place, word // 2) > 0
        return torch.where(tile & half, drawn, 0)
    chosen = positions(pattern, seed, topk, q, visible)
    bit = torch.where(chosen >= 0, torch.ones_like(chosen) << (chosen.clamp(min=0) & 31), 0)
    rows = torch.zeros(len(visible), words, dtype=torch.int64, device=device)
    return rows.scatter_add_(1, chosen.clamp(min=0) >> 5, bit)


def mask(rows: Tensor, q: Tokens, requests: int, padded: int, seed: int) -> Tensor:
    """The mask tensor, int32 [requests, padded, words], from ``rows`` int64 [m, words].

    Bits at or beyond a request's keys and rows at or beyond its queries are garbage: all ones or random, by seed.
    """
    words, device = rows.shape[1], rows.device
    word = torch.arange(words, device=device)
    count = (q.length[:, None] - 32 * word).clamp(0, 32)
    inside = (torch.ones_like(count) << count) - 1
    index = torch.arange(requests * padded, device=device)[:, None]
    garbage = rng.bits(rng.key(seed, "mask-garbage"), index, word) & _ALL
    if rng.key(seed, "mask-garbage-kind") & 1:
        garbage = torch.full_like(garbage, _ALL)
    place = q.request * padded + q.position
    garbage[place] = (rows & inside) | (garbage[place] & ~inside)
    return (((garbage + 2**31) & _ALL) - 2**31).to(torch.int32).view(requests, padded, words)
