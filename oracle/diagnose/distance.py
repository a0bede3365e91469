"""How far two answers are apart, in units of what the contract allows.

Floating-point outputs: the mean over elements of log(1 + (difference / budget)^2), the misfit of a Cauchy law. It
counts an element that is off by a thousand budgets little more than one off by a hundred, so a hypothesis that is
right nearly everywhere beats one that is half right everywhere. Selections: entries of a row that the other row
lacks, whatever their order where any order is right, and scores instead of indices where ties are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Stands for NaN or infinity where the other is not.
STRANGE = 1e9
#: Differences below this share of the budget are the rounding of a right kernel and count as none.
NOISE = 0.02


@dataclass(frozen=True, slots=True)
class Gap:
    """The distance of two answers."""

    energy: float
    """0 for equal answers."""
    off: int
    """Elements (or rows of a selection) that differ by more than the budget."""
    size: int


def ratios(a: Tensor, b: Tensor, allowed: Tensor) -> Tensor:
    """|a - b| over the budget; ``STRANGE`` where one is NaN or infinite and the other is not the same."""
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    finite = torch.isfinite(a) & torch.isfinite(b)
    apart = (torch.nan_to_num(a, 0.0, 0.0, 0.0) - torch.nan_to_num(b, 0.0, 0.0, 0.0)).abs()
    found = apart / allowed.clamp_min(1e-300)
    return torch.where(same, 0.0, torch.where(finite, found.clamp_max(STRANGE), STRANGE))


def gap(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    allowed: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    slack: float = 1.0,
) -> Gap:
    """The distance of two answers of one operator, each by output name, fp64.

    ``slack``: budgets that an element may be off; 2 for an answer whose numbers come from a rounded one.
    """
    if "indices" in a:
        return _selections(a["indices"], b["indices"], arguments)
    energy, off, size = 0.0, 0, 0
    for name, budget in allowed.items():
        if name not in a:
            continue
        if a[name].shape != budget.shape or b[name].shape != budget.shape:
            return Gap(float("inf"), budget.numel(), budget.numel())
        if not budget.numel():
            continue
        found = ratios(a[name], b[name], budget)
        energy += float(torch.log1p((found - NOISE).clamp_min(0.0) ** 2).mean())
        off, size = off + int((found > slack).sum()), size + found.numel()
    return Gap(energy, off, size)


def _selections(a: Tensor, b: Tensor, arguments: Mapping[str, Any]) -> Gap:
    if a.shape != b.shape:
        return Gap(float("inf"), len(b), len(b))
    missing = (_entries(a, arguments) != _entries(b, arguments)).sum(1)
    width = max(1, a.shape[1])
    return Gap(float((missing / width).mean()) if len(a) else 0.0, int((missing > 0).sum()), len(a))


def _entries(indices: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """Rows made comparable: sorted scores for entries inside a long window, indices as they stand in a short one."""
    scores, ks, ke, k = (arguments[name] for name in ("scores", "ks", "ke", "k"))
    scores, ks, ke = scores.detach().cpu().double(), ks.cpu().long(), ke.cpu().long()
    width = (ke - ks).clamp_min(0)[:, None]
    chosen = indices.long()
    inside = (chosen >= 0) & (chosen < width)
    if scores.shape[1]:
        column = torch.where(inside, chosen + ks[:, None], 0).clamp(0, scores.shape[1] - 1)
        ranked = torch.nan_to_num(scores.gather(1, column), 3e38, 2e38, -2e38)
    else:
        ranked = torch.zeros(chosen.shape, dtype=torch.float64)
    # Indices out of the window are told from scores by their size.
    ranked = torch.where(inside, ranked, 1e39 + chosen.double() * 1e30)
    # One index twice is not two indices of one score.
    ordered = torch.where(inside, chosen, -1 - torch.arange(chosen.shape[1])).sort(1)
    twice = torch.zeros_like(inside).scatter(1, ordered.indices[:, 1:], ordered.values[:, 1:] == ordered.values[:, :-1])
    ranked = torch.where(twice, 2e39, ranked)
    long = (width > int(k)).expand(chosen.shape)
    return torch.where(long, ranked.sort(1).values, chosen.double())
