"""Faults that act past some size, on the rim of a cache, or on values that small random batches do not hold.

A kernel is right for as many requests, rows, heads, keys or slots as its author had in mind. Each fault names the row
of ``suites/reach`` on which it acts; few of them act in the quick suite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel
from ..simulated.radix import ordered_key
from ..simulated.sites import INF
from ..wrapped import altered, mangled

fault = sited("reach")

#: A GPU of Hopper's generation has this many multiprocessors: what a persistent grid that forgets to loop covers.
PROCESSORS = 132
#: Threads of one block: what a scan over requests covers that has no second round.
THREADS = 128


def _short_grid(operator: str, axis: int, most: int) -> Callable[[], Kernel]:
    """Blocks past ``most`` along an axis of the outputs read the last one's place again."""

    def change(*outputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_clamped(x, axis, most) for x in outputs)

    return altered(operator, change)


def _clamped(x: Tensor, axis: int, most: int) -> Tensor:
    place = torch.arange(x.shape[axis], device=x.device).clamp(max=most - 1)
    plain = x.view(torch.uint8) if x.element_size() == 1 else x
    return plain.index_select(axis, place).view(x.dtype)


def _odd_head_lost(*outputs: Tensor) -> tuple[Tensor, ...]:
    """Heads are taken in pairs: of an odd number the last is its neighbour's."""
    return tuple(_clamped(x, 1, x.shape[1] - x.shape[1] % 2) for x in outputs)


def _keys_within(most: int) -> Callable[[list[int], int], tuple[int, int]]:
    return lambda cu, b: (cu[b], min(cu[b + 1], cu[b] + most))


def _first_key_lost_past(most: int) -> Callable[[list[int], int], tuple[int, int]]:
    return lambda cu, b: (cu[b] + (b >= most and cu[b + 1] - cu[b] > 1), cu[b + 1])


def _last_key_lost(at: Callable[[int, int], bool]) -> Callable[[Tensor, int, int], Tensor]:
    """The diagonal is one key early for requests of some query and key lengths."""
    return lambda rows, q_len, k_len: rows + (k_len - q_len) - int(at(q_len, k_len) and k_len > 1)


def _slots_within(most: int) -> Callable[[Tensor, int], Tensor]:
    return lambda indices, n: torch.where(torch.arange(indices.shape[1], device=indices.device) < most, indices, -1)


def _columns_within(most: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        column = torch.arange(inputs["scores"].shape[1], device=inputs["scores"].device)
        return {"scores": torch.where(column < most, inputs["scores"], -INF)}

    return change


def _tail_cut(most: int) -> Callable[..., tuple[Tensor]]:
    """Scores from column ``most`` on are -inf."""
    return lambda scores: (torch.where(torch.arange(scores.shape[1], device=scores.device) < most, scores, -INF),)


def _window_from_tile(cols: Tensor, ks: Tensor, ke: Tensor) -> Tensor:
    late = (ks > 0) & (ks % 64 == 0)
    return (cols >= (ks + late.to(ks.dtype))[:, None]) & (cols < ke[:, None])


def _zero_by_bits(scores: Tensor) -> Tensor:
    """The sign is asked of the number, not of its bits: -0 is turned to 0, below all others."""
    return torch.where((scores == 0) & scores.signbit(), 0, ordered_key(scores))


def _equal_sides(lse: Tensor, joint: Tensor) -> Tensor:
    """``if a > b … elif b > a …``: where the sides are equal each has all of the weight."""
    weight = torch.where(lse == -INF, torch.zeros_like(lse), torch.exp(lse - joint))
    return torch.where(weight == 0.5, 1.0, weight)


def _unshifted(peak: Tensor) -> Tensor:
    return torch.zeros_like(peak)


REACH = (
    fault(
        "heads-past-64-repeated", "dense_mha", "The grid covers 64 heads.", "", "element",
        plant=_short_grid("dense_mha", 1, 64), options=("reach=heads",),
    ),
    fault(
        "last-odd-head-lost", "dense_mha", "Heads are taken in pairs, and their number is rounded down.", "", "element",
        plant=altered("dense_mha", _odd_head_lost), options=("reach=odd-heads",),
    ),
    fault(
        "packed-rows-past-512-repeated", "dense_mha", "The grid covers 512 queries.", "", "element",
        plant=_short_grid("dense_mha", 0, 512), options=("reach=queries",),
    ),
    fault(
        "requests-past-128-lose-a-key", "dense_mha", "A prefix sum over one block of threads stops at 128 requests.",
        "", "element", key_range=_first_key_lost_past(THREADS), options=("reach=requests",),
    ),
    fault(
        "keys-past-4096-lost", "dense_mha", "A buffer of scores has room for 4096 keys.", "", "element",
        key_range=_keys_within(4096), options=("reach=keys",),
    ),
    fault(
        "decode-of-whole-tiles-loses-a-key", "dense_mha", "A single query does not see the last of 64 n keys.", "",
        "element", last_key=_last_key_lost(lambda q, k: q == 1 and k % 64 == 0), options=("reach=edges",),
    ),
    fault(
        "context-of-whole-tiles-shifts-the-diagonal", "dense_mha", "64 n keys of context put the diagonal one early.",
        "", "element", last_key=_last_key_lost(lambda q, k: q > 1 and k > q and (k - q) % 64 == 0),
        options=("reach=edges",),
    ),
    fault(
        "overhang-of-a-tile-shifts-the-diagonal", "dense_mha",
        "With 64 more queries than keys the diagonal is one early.", "", "element",
        last_key=_last_key_lost(lambda q, k: q - k >= 64), options=("reach=gaps",),
    ),
    fault(
        "softmax-without-maximum", "dense_mha", "exp(S) without subtracting the maximum overflows at 89.", "",
        "structure", base=_unshifted, options=("reach=large-scores",),
    ),
    fault(
        "scores-saturate-at-100", "masked_mha", "Scores above 100 are cut to keep exp in range.", "", "element",
        score=lambda qk, scale: (qk * scale).clamp(max=100.0), options=("reach=large-scores",),
    ),
    fault(
        "mask-words-past-32-ignored", "masked_mha", "A warp of 32 lanes reads a word a lane: 1024 keys.", "", "element",
        seen=lambda seen, cols: seen & (cols < 1024), options=("reach=batch",),
    ),
    fault(
        "single-bit-rows-taken-as-empty", "masked_mha", "A row with one key of a tile is left out.", "", "element",
        seen=lambda seen, cols: seen & (seen.sum(-1, keepdim=True) != 1), options=("reach=one-key",),
    ),
    fault(
        "slots-past-1024-ignored", "sparse_mqa", "A list of indices in shared memory has room for 1024.", "", "element",
        indices=_slots_within(1024), options=("reach=slots",),
    ),
    fault(
        "rows-past-the-processors-repeated", "sparse_mqa", "A persistent grid does one query for each multiprocessor.",
        "", "element", plant=_short_grid("sparse_mqa", 0, PROCESSORS), options=("reach=queries",),
    ),
    fault(
        "heads-past-32-repeated", "sparse_mqa", "Blocks of 16 heads are counted rounded down to a power of two.", "",
        "element", plant=_short_grid("sparse_mqa", 1, 32), options=("reach=heads",),
    ),
    fault(
        "last-row-of-the-cache-invalid", "sparse_mqa", "An index is valid below n - 1.", "", "element",
        valid=lambda entry, n: (entry >= 0) & (entry < n - 1), options=("reach=first-and-last-row",),
    ),
    fault(
        "consecutive-rows-loaded-as-one", "sparse_mqa", "Of rows that lie side by side the first is loaded twice.", "",
        "element", address=lambda entry, n: entry - _follows(entry).to(entry.dtype),
        options=("reach=first-and-last-row",),
    ),
    fault(
        "sink-of-empty-rows-nan", "sparse_mqa", "exp(lse - sink) of a query without keys and a sink of -inf.", "",
        "structure", sink=lambda lse, sink: torch.sigmoid(lse - sink.float()), options=("reach=sink-of-empty-rows",),
    ),
    fault(
        "score-rows-past-128-repeated", "indexer_scores", "The grid covers 128 queries.", "", "element",
        plant=_short_grid("indexer_scores", 0, THREADS), options=("reach=queries",),
    ),
    fault(
        "scores-past-4096-left-out", "indexer_scores", "The grid covers 4096 keys.", "", "structure",
        plant=altered("indexer_scores", _tail_cut(4096)), options=("reach=keys",),
    ),
    fault(
        "index-heads-taken-in-pairs", "indexer_scores", "Of an odd number of heads the last is left out.", "",
        "element", heads=lambda count: range(count - count % 2), options=("reach=odd-heads",),
    ),
    fault(
        "window-from-a-tile-edge-starts-late", "indexer_scores", "A first key of 64 n is left to the tile before.", "",
        "structure", window=_window_from_tile, options=("reach=windows-from-tile-edges",),
    ),
    fault(
        "small-key-scales-flushed", "indexer_scores", "Key scales below 1e-6 are taken as 0.", "", "element",
        dequantise=lambda total, scale: total * torch.where(scale < 1e-6, 0.0, scale), options=("reach=far-scales",),
    ),
    fault(
        "page-0-taken-as-none", "paged_indexer_scores", "Page 0 is taken for the page of nobody; page 1 is read.", "",
        "element", address=lambda pages, count: pages.clamp(min=1).clamp(max=count - 1),
        options=("reach=first-and-last-page",),
    ),
    fault(
        "contexts-past-2048-cut", "paged_indexer_scores", "Scores behind 2048 keys are left out.", "", "structure",
        plant=altered("paged_indexer_scores", _tail_cut(2048)), options=("reach=keys",),
    ),
    fault(
        "decodes-past-128-repeated", "paged_indexer_scores", "A schedule holds 128 requests.", "", "element",
        plant=_short_grid("paged_indexer_scores", 0, THREADS), options=("reach=requests",),
    ),
    fault(
        "next-n-past-4-misses-itself", "paged_indexer_scores", "More than four queries a request end a key early.", "",
        "structure", end=lambda length, m, query: length - m + query + (m <= 4), options=("reach=next-n-6",),
    ),
    fault(
        "columns-past-65536-ignored", "topk_select", "Columns are counted in 16 bits.", "", "topk",
        plant=mangled("topk_select", _columns_within(65536)), options=("reach=columns",),
    ),
    fault(
        "selected-past-1024-repeated", "topk_select", "A block of 1024 threads stores a slot each.", "", "topk",
        plant=_short_grid("topk_select", 1, 1024), options=("reach=slots",),
    ),
    fault(
        "rows-past-64-repeated", "topk_select", "The grid covers 64 rows.", "", "topk",
        plant=_short_grid("topk_select", 0, 64), options=("reach=rows",),
    ),
    fault(
        "minus-zero-ranks-lowest", "topk_select", "-0 is turned to the least of all keys.", "", "topk",
        key=_zero_by_bits, options=("reach=signed-zeros",),
    ),
    fault(
        "small-scores-flushed", "topk_select", "Scores below 1e-20 are taken as 0.", "", "topk",
        scores=lambda x: torch.where(x.abs() < 1e-20, 0.0, x), options=("reach=spread",),
    ),
    fault(
        "large-scores-clamped", "topk_select", "Scores are clamped to 1e30 before they are ranked.", "", "topk",
        scores=lambda x: torch.where(x.isfinite(), x.clamp(-1e30, 1e30), x), options=("reach=spread",),
    ),
    fault(
        "minus-infinity-never-selected", "topk_select", "Selected scores of -inf become -1.", "", "topk",
        plant=lambda: _without_minus_infinity, options=("reach=crowded",),
    ),
    fault(
        "merge-heads-past-64-repeated", "merge_lse", "The grid covers 64 heads.", "", "element",
        plant=_short_grid("merge_lse", 1, 64), options=("reach=heads",),
    ),
    fault(
        "merge-rows-past-1024-repeated", "merge_lse", "The grid covers 1024 queries.", "", "element",
        plant=_short_grid("merge_lse", 0, 1024), options=("reach=rows",),
    ),
    fault(
        "merge-equal-sides-both-whole", "merge_lse", "Where both LSEs are equal each side has all of the weight.", "",
        "element", share=_equal_sides, options=("reach=ties",),
    ),
    *(
        fault(
            name, operator, description, "", "exact", kept=kept, options=("reach=first-and-last-page",),
        )
        for name, operator, description, kept in (
            ("slot-0-taken-as-padding", "write_cache", "Only slots above 0 are written.",
             lambda slots, rows: (slots > 0) & (slots < rows)),
            ("last-slot-unwritten", "write_index", "Slots are written below the last one.",
             lambda slots, rows: (slots >= 0) & (slots < rows - 1)),
        )
    ),
    *(
        fault(
            f"{operator.replace('_', '-')}-page-0-taken-as-none", operator, "Page 0 is taken for the page of nobody.",
            "", "exact", held=lambda page, blocks: (page > 0) & (page < blocks), options=("reach=first-and-last-page",),
        )
        for operator in ("gather", "gather_index", "convert_indices")
    ),
    fault(
        "tokens-past-256-unwritten", "write_cache", "The grid covers 256 tokens.", "", "exact",
        kept=lambda slots, rows: (slots >= 0) & (slots < rows) & (torch.arange(len(slots), device=slots.device) < 256),
        options=("reach=tokens",),
    ),
    fault(
        "requests-past-32-not-found", "gather", "A warp looks for the request of a token among 32.", "", "exact",
        request=lambda cu, token: torch.searchsorted(cu[1:33], token, right=True).clamp(max=31),
        options=("reach=requests",),
    ),
    fault(
        "large-scales-clamped", "quantize", "Scales are at most 64.", "", "exact",
        floor=lambda amax, least_amax, least_scale: _clamped_scale(amax, least_amax, least_scale),
        options=("reach=spread",),
    ),
    fault(
        "positions-past-1024-lost", "build_mask", "A row of bits in shared memory has room for 1024 keys.", "", "exact",
        in_span=lambda local, length: (local >= 0) & (local < length) & (local < 1024), options=("reach=keys",),
    ),
)  # fmt: skip


def _follows(entry: Tensor) -> Tensor:
    """Whether each entry is one more than the one before it."""
    before = torch.nn.functional.pad(entry, (1, 0), value=-2)[..., :-1]
    return (entry == before + 1) & (entry > 0)


def _clamped_scale(amax: Tensor, least_amax: float, least_scale: float) -> Tensor:
    return (amax.clamp_min(least_amax) / torch.full_like(amax, 448.0)).clamp_min(least_scale).clamp(max=64.0)


def _without_minus_infinity(**inputs: Any) -> tuple[Tensor, ...]:
    from ..simulated import simulated

    (indices,) = simulated("topk_select")(**inputs)
    column = (indices + inputs["ks"][:, None]).clamp(min=0).long()
    lowest = inputs["scores"].gather(1, column) == -INF
    # Short windows are the identity without a look at the scores.
    full = (inputs["ke"] - inputs["ks"] > inputs["k"])[:, None]
    return (torch.where((indices >= 0) & lowest & full, -1, indices),)
