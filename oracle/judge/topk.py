"""Judges a selection by exact rules: no tolerance, ties free.

Against scores that the selection was given, the multiset of selected scores is the multiset of the k largest, so
equal scores may be exchanged and nothing else may. NaN ranks above +inf. With ``band`` > 0 (scores that the
implementation computed itself) a key whose score is more than 2 band above the k-th must be in, one more than 2 band
below must be out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ...reference.chunks import cut
from .findings import Judgement, where

LIMIT = 2**24
#: Stands for +inf in comparisons, so that inf is left for NaN, which ranks above it; no fp32 score comes near.
INFINITY = 1.0e300


def judge(
    observed: Tensor,
    contract: Contract,
    *,
    scores: Tensor,
    ks: Tensor,
    ke: Tensor,
    k: int,
    band: Tensor | None = None,
) -> Judgement:
    """Compare indices [s,k] with the rules; ``band`` [s] is the error bound of the scores."""
    result = Judgement()
    if not scores.shape[1]:
        scores = scores.new_zeros(scores.shape[0], 1)  # a column outside every window, so that maxima exist
    problems: dict[str, Tensor] = {}
    margins: list[Tensor] = []
    recalls: list[Tensor] = []
    died: dict[str, bool] = {}
    for rows in cut(slice(0, scores.shape[0]), max(1, scores.shape[1]), LIMIT):
        width = torch.where(ke[rows] > ks[rows], ke[rows] - ks[rows], 0).long()
        ranked = _window(scores[rows], ks[rows], ke[rows])
        selected = observed[rows].long()
        found, recall, margin = _row_problems(
            selected, ranked, ks[rows].long(), width, k, contract, None if band is None else band[rows]
        )
        for name, bad in found.items():
            problems.setdefault(name, torch.zeros(len(scores), dtype=torch.bool, device=scores.device))[rows] = bad
        recalls.append(recall)
        margins.append(margin)
        _power(died, ranked, ks[rows].long(), width, k, contract)
    for name, bad in problems.items():
        if bool(bad.any()):
            result.add("topk", name, where=where(bad, ("rows",)))
    if recalls:
        recall, margin = torch.cat(recalls), torch.cat(margins)
        result.measures["recall"] = float(recall.min())
        finite = margin[torch.isfinite(margin)]
        if finite.numel():
            result.measures["smallest_margin"] = float(finite.min())
    result.survivors = tuple(sorted(name for name, gone in died.items() if not gone))
    return result


def _window(scores: Tensor, ks: Tensor, ke: Tensor) -> Tensor:
    """Scores as fp64 with NaN at the top; outside the window below everything."""
    columns = torch.arange(scores.shape[1], device=scores.device)
    inside = (columns >= ks[:, None]) & (columns < ke[:, None])
    ranked = scores.to(torch.float64)
    ranked = ranked.masked_fill(ranked == torch.inf, INFINITY).masked_fill(torch.isnan(ranked), torch.inf)
    return torch.where(inside, ranked, -torch.inf)


def _row_problems(
    selected: Tensor,
    ranked: Tensor,
    ks: Tensor,
    width: Tensor,
    k: int,
    contract: Contract,
    band: Tensor | None,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    slots = torch.arange(k, device=selected.device)
    count = width.clamp_max(k)
    due = slots < count[:, None]
    valid = (selected >= 0) & (selected < width[:, None])
    problems = {
        "an index is outside the window of its row": (~valid & (selected != -1)).any(1),
        "-1 stands inside the valid prefix": (due & (selected == -1)).any(1),
        "an index stands beyond the valid prefix": (~due & (selected != -1)).any(1),
        "an index is selected twice": _twice(torch.where(valid & due, selected, -1 - slots)),
    }
    if contract.topk_short == "identity":
        problems["a window of at most k keys is not selected in ascending order"] = (
            (width <= k)[:, None] & due & (selected != slots)
        ).any(1)
    columns = torch.where(valid & due, selected + ks[:, None], 0).clamp_max(max(0, ranked.shape[1] - 1))
    got = torch.where(valid & due, ranked.gather(1, columns), -torch.inf)
    top = ranked.topk(min(k + 1, ranked.shape[1]), dim=1).values
    best = torch.where(
        due, torch.nn.functional.pad(top, (0, max(0, k - top.shape[1])), value=-torch.inf)[:, :k], -torch.inf
    )
    apart = got.sort(1, descending=True).values != best
    if band is not None:
        # Outside the tie band of the k-th score the selection is forced; inside it anything goes.
        kth = best.gather(1, (count - 1).clamp_min(0)[:, None])[:, 0]
        low, high = kth - 2.0 * band, kth + 2.0 * band
        missing = (ranked > high[:, None]).sum(1) != (got > high[:, None]).sum(1)
        problems["a key that must be selected is missing"] = missing & (width > k)
        problems["a key that must not be selected is there"] = ((got < low[:, None]) & due).any(1) & (width > k)
    else:
        problems["the selected scores are not the k largest"] = (apart & due).any(1)
    if contract.topk_order != "any":
        step = got[:, 1:] > got[:, :-1] if contract.topk_order == "descending" else selected[:, 1:] < selected[:, :-1]
        problems[f"selected indices are not in {contract.topk_order} order, as declared"] = (
            step & due[:, 1:] & (width > k)[:, None]
        ).any(1)
    if contract.topk_ties == "lowest-index":
        problems["of equal scores the lowest index was not selected, as declared"] = _not_lowest(
            selected, ranked, ks, valid & due, best, count, width, k
        )
    recall = _recall(got, best, due)
    return problems, recall, _margin(top, width, k)


def _twice(indices: Tensor) -> Tensor:
    ordered = indices.sort(1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(1)


def _recall(got: Tensor, best: Tensor, due: Tensor) -> Tensor:
    kth = torch.where(due, best, torch.inf).amin(1)
    hit = ((got >= kth[:, None]) & due).sum(1)
    return torch.where(due.any(1), hit / due.sum(1).clamp_min(1), 1.0)


def _margin(top: Tensor, width: Tensor, k: int) -> Tensor:
    """Distance between the k-th and the next score; inf where everything is selected."""
    if top.shape[1] <= k:
        return torch.full_like(width, torch.inf, dtype=torch.float64)
    gap = top[:, k - 1] - top[:, k]
    return torch.where((width > k) & torch.isfinite(gap) & (gap < INFINITY / 2), gap, torch.inf)


def _not_lowest(
    selected: Tensor, ranked: Tensor, ks: Tensor, real: Tensor, best: Tensor, count: Tensor, width: Tensor, k: int
) -> Tensor:
    kth = best.gather(1, (count - 1).clamp_min(0)[:, None])
    columns = torch.arange(ranked.shape[1], device=ranked.device)
    inside = (columns >= ks[:, None]) & (columns < (ks + width)[:, None])
    tied = (ranked == kth) & inside
    chosen = torch.zeros_like(tied)
    rows = torch.arange(len(selected), device=selected.device)[:, None].expand_as(selected)
    chosen[rows[real], (selected + ks[:, None])[real]] = True
    # Among the tied, the chosen ones must come first.
    order = (tied & chosen).long().cumsum(1)
    gap = tied & ~chosen
    later = order[:, -1:] > order
    return (gap & later).any(1) & (width > k)


def _power(died: dict[str, bool], ranked: Tensor, ks: Tensor, width: Tensor, k: int, contract: Contract) -> None:
    """Wrong selections that these scores must tell from the right one."""
    slots = torch.arange(k, device=ranked.device)
    count = width.clamp_max(k)
    first = torch.where(slots < count[:, None], slots, -1)
    last = torch.where(slots < count[:, None], (width - count)[:, None] + slots, -1)
    wrong = {"nothing selected": torch.full_like(first, -1)} if bool(count.any()) else {}
    columns = torch.arange(ranked.shape[1], device=ranked.device)
    inside = (columns >= ks[:, None]) & (columns < (ks + width)[:, None])
    highest = torch.where(inside, ranked, -torch.inf).amax(1)
    lowest = torch.where(inside, ranked, torch.inf).amin(1)
    # Where all scores are equal any k keys are right, and where the window is short all of them are.
    if bool(((highest > lowest) & (width > k)).any()):
        wrong |= {"the first k keys": first, "the last k keys": last}
    for name, selected in wrong.items():
        problems, _, _ = _row_problems(selected, ranked, ks, width, k, contract, None)
        caught = bool(torch.stack(list(problems.values())).any())
        died[name] = died.get(name, False) or caught
