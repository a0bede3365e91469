"""Simulated ``topk_select``: most-significant-digit radix selection, one row after another as a persistent block does.

Each pass counts the candidates by one digit of an order-preserving integer key, takes all above the digit that holds
the k-th, and keeps those equal to it for the next pass; what still ties after the last digit fills up in column order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def ordered_key(scores: Tensor) -> Tensor:
    """int64 in [0, 2^32) that orders as the fp32 scores do; every NaN is the largest."""
    bits = scores.view(torch.int32).long() & 0xFFFFFFFF
    key = torch.where(bits >= 1 << 31, 0xFFFFFFFF - bits, bits + (1 << 31))
    return key.masked_fill(scores.isnan(), 0xFFFFFFFF)


def threshold_digit(histogram: Tensor, need: int) -> int:
    """Largest digit such that at least ``need`` candidates (all, if there are fewer) have it or a larger one."""
    at_least = histogram.flip(0).cumsum(0).flip(0)
    return int((at_least >= at_least[0].clamp(max=need)).nonzero().max())


@dataclass(frozen=True, slots=True)
class SelectSites:
    """Error sites of the selection; right by default."""

    window: Callable[[int, int, int], tuple[int, int]] = lambda ks, ke, t: (ks, ke)
    """First and last-plus-one column that is read."""
    scores: Callable[[Tensor], Tensor] = lambda scores: scores
    key: Callable[[Tensor], Tensor] = ordered_key
    shifts: Sequence[int] = (24, 16, 8, 0)
    threshold: Callable[[Tensor, int], int] = threshold_digit
    above: Callable[[Tensor, int], Tensor] = lambda digit, threshold: digit > threshold
    stash: Callable[[Tensor, int], Tensor] = lambda candidates, k: candidates
    """Candidates of the threshold digit that are kept for the next pass, and k."""
    ties: Callable[[Tensor, int, int], Tensor] = lambda candidates, need, k: candidates[:need]
    is_short: Callable[[int, int], bool] = lambda count, k: count <= k
    short: Callable[[int, int], Tensor] = lambda count, k: torch.arange(count)
    """The selection of a row that has no more than k columns."""
    chosen: Callable[[Tensor, int], Tensor] = lambda chosen, k: chosen
    """Columns chosen, before they are stored."""
    local: Callable[[Tensor, int], Tensor] = lambda columns, ks: columns
    """Stored value of a column counted from the start of the window."""
    buffer: Callable[[int, int], Tensor] = lambda rows, k: torch.full((rows, k), -1, dtype=torch.int32)
    output: Callable[[Tensor], Tensor] = lambda indices: indices


SELECT_SITES = SelectSites()


def topk_select(
    scores: Tensor, ks: Tensor, ke: Tensor, *, k: int, sites: SelectSites = SELECT_SITES
) -> tuple[Tensor]:
    """Shapes: scores fp32 [s, t], ks and ke int32 [s]. Returns (indices,) int32 [s, k], request-local, -1 padded."""
    rows, t = scores.shape
    indices = sites.buffer(rows, k)
    for row, (start, end) in enumerate(zip(ks.tolist(), ke.tolist(), strict=True)):
        first, last = sites.window(start, end, t)
        count = max(last - first, 0)
        if sites.is_short(count, k):
            chosen = sites.short(count, k)
        else:
            chosen = _select(sites.scores(scores[row, first:last].float().cpu()), k, sites)
        stored = sites.local(sites.chosen(chosen, k), start)[:k]
        indices[row, : len(stored)] = stored.to(torch.int32)
    return (sites.output(indices).to(scores.device),)


def _select(scores: Tensor, k: int, sites: SelectSites) -> Tensor:
    """Positions of the k largest of one row, in no particular order."""
    keys = sites.key(scores)
    candidates, chosen, need = torch.arange(len(keys)), [], k
    for shift in sites.shifts:
        digit = (keys[candidates] >> shift) & 255
        threshold = sites.threshold(torch.bincount(digit, minlength=256), need)
        taken = candidates[sites.above(digit, threshold)]
        chosen.append(taken)
        need -= len(taken)
        candidates = sites.stash(candidates[digit == threshold], k)
    return torch.cat([*chosen, sites.ties(candidates, need, k)])
