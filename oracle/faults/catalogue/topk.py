"""Top-k selection: windows, order-preserving keys, buckets that overflow, ties, and the index buffer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.radix import ordered_key
from ..simulated.sites import INF, rounded
from ..wrapped import altered

fault = sited("topk")


def _unsigned_key(scores: Tensor) -> Tensor:
    """The bits themselves: every negative score is above every positive one."""
    return scores.contiguous().view(torch.int32).long() & 0xFFFFFFFF


def _mirrored_negatives(scores: Tensor) -> Tensor:
    """The sign is turned, but among negatives the largest magnitude wins."""
    bits = _unsigned_key(scores)
    return torch.where(bits >= 1 << 31, bits - (1 << 31), bits + (1 << 31)).masked_fill(scores.isnan(), 0xFFFFFFFF)


def _halves(scores: Tensor) -> Tensor:
    """Keys such that each half of the row gives half of the selection: what two unmerged splits select."""
    rank = torch.empty_like(scores, dtype=torch.int64)
    half = len(scores) // 2
    for part in (slice(0, half), slice(half, len(scores))):
        order = scores[part].nan_to_num(nan=INF).argsort()
        rank[part] = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
        rank[part] += 0xFFFFFF - len(order)
    return rank


def _padded(value: int, count: int, k: int) -> Tensor:
    return torch.cat((torch.arange(count), torch.full((k - count,), value)))


def _minus_one_past(limit: int, candidates: Tensor, need: int) -> Tensor:
    ties = candidates[:need].clone()
    ties[limit:] = -1
    return ties


def _power_of_two(chosen: Tensor, k: int) -> Tensor:
    kept = 1 << (k.bit_length() - 1)
    kept = kept if kept < k else k - 1
    return torch.where(torch.arange(len(chosen)) < kept, chosen, -1)


def _first_repeated(chosen: Tensor, k: int) -> Tensor:
    """The last slot repeats the first in full rows."""
    return torch.cat((chosen[:-1], chosen[:1])) if len(chosen) == k and k > 1 else chosen


def _one_replaced(chosen: Tensor, k: int) -> Tensor:
    """The first selected column of a full row is replaced by one that was not selected, if there is one."""
    if len(chosen) < k:
        return chosen
    missing = next(column for column in range(k + 1) if column not in set(chosen.tolist()))
    return torch.cat((torch.tensor([missing]), chosen[1:])) if missing < int(chosen.max()) else chosen


def _rows_rolled(indices: Tensor) -> tuple[Tensor]:
    return (indices.roll(1, 0),)


TOPK = (
    fault(
        "row-start-ignored", "topk_select", "Rows are read from column 0.", "sglang#12582", "topk",
        window=lambda ks, ke, t: (0, ke - ks),
    ),
    fault(
        "row-end-inclusive", "topk_select", "Column ke is read as well.", "", "topk",
        window=lambda ks, ke, t: (ks, min(ke + 1, t)),
    ),
    fault(
        "row-end-ignored", "topk_select", "Rows are read to the last column of the batch.", "", "topk",
        window=lambda ks, ke, t: (ks, t),
    ),
    fault(
        "row-end-drops-last", "topk_select", "The newest column of the window is not read.", "ATOM#2118", "topk",
        window=lambda ks, ke, t: (ks, max(ke - 1, ks)),
    ),
    fault(
        "indices-absolute", "topk_select", "Columns of the batch are stored, not positions in the request.",
        "vllm#56749", "topk", local=lambda columns, ks: columns + ks,
    ),
    fault(
        "indices-relative-twice", "topk_select", "The start of the window is subtracted twice.", "", "topk",
        local=lambda columns, ks: columns - ks,
    ),
    fault(
        "negative-scores-above-positive", "topk_select", "Score bits are compared as unsigned integers.", "", "topk",
        key=_unsigned_key,
    ),
    fault(
        "negative-scores-mirrored", "topk_select", "Among negative scores the smallest is taken for the largest.", "",
        "topk", options=("kind=negative",), key=_mirrored_negatives,
    ),
    fault(
        "smallest-selected", "topk_select", "The k smallest are selected.", "", "topk",
        key=lambda scores: 0xFFFFFFFF - ordered_key(scores),
    ),
    fault(
        "nan-ranks-lowest", "topk_select", "NaN ranks below -inf.", "", "topk", options=("kind=nan",),
        key=lambda scores: ordered_key(scores).masked_fill(scores.isnan(), 0),
    ),
    fault(
        "plus-inf-ranks-lowest", "topk_select", "+inf is taken for an empty slot.", "sglang#30645", "topk",
        options=("kind=infs",), key=lambda scores: ordered_key(scores).masked_fill(scores == INF, 0),
    ),
    fault(
        "scores-selected-in-bf16", "topk_select", "Scores are rounded to bf16 before they are compared.", "", "topk",
        scores=lambda scores: rounded(scores, torch.bfloat16),
    ),
    fault(
        "scores-selected-in-fp16", "topk_select", "Scores are rounded to fp16 before they are compared.", "", "topk",
        options=("kind=clustered",), scores=lambda scores: rounded(scores, torch.float16),
    ),
    fault(
        "radix-stops-after-two-digits", "topk_select", "The lower 16 bits of the score are never compared.", "", "topk",
        options=("kind=clustered",), shifts=(24, 16),
    ),
    fault(
        "radix-overflow-keeps-first", "topk_select",
        "Of more than k + k / 4 candidates of one coarse bin, only the first arrivals are refined.", "sglang#35257",
        "topk", options=("kind=clustered",), stash=lambda candidates, k: candidates[: k + k // 4],
    ),
    fault(
        "radix-overflow-keeps-last", "topk_select",
        "A bin that overflows k + k / 4 slots wraps and keeps the last arrivals.", "b12x#55", "topk",
        options=("kind=clustered",), stash=lambda candidates, k: candidates[-(k + k // 4) :],
    ),
    fault(
        "radix-overflow-drops-ties", "topk_select", "A bin that overflows k + k / 4 slots is dropped.",
        "vllm#55314", "topk", options=("kind=clustered",),
        stash=lambda candidates, k: candidates if len(candidates) <= k + k // 4 else candidates[:0],
    ),
    fault(
        "tie-buffer-pads-minus-one", "topk_select", "At most 4 ties at the threshold are stored; -1 fills the rest.",
        "sglang#30645", "topk", options=("kind=zeros",),
        ties=lambda candidates, need, k: _minus_one_past(4, candidates, need),
    ),
    fault(
        "ties-not-filled", "topk_select", "Only scores above the threshold are stored.", "", "topk",
        ties=lambda candidates, need, k: candidates[:0],
    ),
    fault(
        "threshold-inclusive-overfills", "topk_select",
        "Everything equal to the threshold digit is taken in column order before larger scores.", "", "topk",
        above=lambda digit, threshold: digit >= threshold,
    ),
    fault(
        "threshold-one-digit-high", "topk_select", "Of candidates with equal leading byte none is refined.", "",
        "topk", shifts=(24,),
    ),
    fault(
        "zeros-taken-as-empty", "topk_select", "Exact zeros are not selectable.", "sglang#30645", "topk",
        options=("kind=zeros",), key=lambda scores: ordered_key(scores).masked_fill(scores == 0, 0),
    ),
    fault(
        "halves-not-merged", "topk_select", "Each half of a row contributes k / 2, whatever its scores.", "", "topk",
        options=("kind=ramp",), key=_halves,
    ),
    fault(
        "one-member-wrong", "topk_select",
        "One selected column of each full row is replaced by the first one left out.", "", "topk", chosen=_one_replaced,
    ),
    fault(
        "duplicate-emitted", "topk_select", "A full row names its first member twice.", "", "topk",
        chosen=_first_repeated,
    ),
    fault(
        "selection-width-rounded-down", "topk_select", "Slots past the power of two below k stay -1.", "sglang#39431",
        "topk", chosen=_power_of_two,
    ),
    fault(
        "short-row-padded-with-zero", "topk_select", "Unused slots of a short row are 0.", "vllm#45324", "topk",
        short=lambda count, k: _padded(0, count, k),
    ),
    fault(
        "short-row-padded-with-last", "topk_select", "Unused slots of a short row repeat its last column.", "",
        "topk", short=lambda count, k: _padded(max(count - 1, 0), count, k),
    ),
    fault(
        "short-row-descending", "topk_select", "Columns of a short row are stored backwards.", "", "topk",
        short=lambda count, k: torch.arange(count).flip(0),
    ),
    fault(
        "short-row-padding-leads", "topk_select", "The -1 of a short row come first.", "", "topk",
        short=lambda count, k: torch.cat((torch.full((k - count,), -1), torch.arange(count))),
    ),
    fault(
        "short-row-left-empty", "topk_select", "A row with no more than k columns is left -1.", "vllm#52512",
        "topk", short=lambda count, k: torch.arange(0),
    ),
    fault(
        "row-of-exactly-k-loses-one", "topk_select", "A row of exactly k columns loses the last.", "", "topk",
        options=("k=topk",), short=lambda count, k: torch.arange(count - 1 if count == k else count),
    ),
    fault(
        "short-test-off-by-one", "topk_select", "A row of k + 1 columns counts as short.", "", "topk",
        options=("k=topk+1",), is_short=lambda count, k: count <= k + 1,
    ),
    fault(
        "buffer-not-cleared", "topk_select", "Slots that are not written hold 0.", "TensorRT-LLM#16290", "topk",
        buffer=lambda rows, k: torch.zeros(rows, k, dtype=torch.int32),
    ),
    fault(
        "rows-rolled", "topk_select", "Each query gets the selection of the one before.", "", "topk",
        plant=altered("topk_select", _rows_rolled),
    ),
    fault(
        "indices-int64", "topk_select", "Indices are 64 bits wide.", "", "structure",
        plant=altered("topk_select", lambda indices: (indices.long(),)),
    ),
)
