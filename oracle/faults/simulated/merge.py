"""Simulated ``merge_lse``: two partial attention results joined by their log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .sites import INF


def joint_lse(lse_a: Tensor, lse_b: Tensor) -> Tensor:
    """log(exp(lse_a) + exp(lse_b)), -inf where both are."""
    return torch.logaddexp(lse_a, lse_b)


def share(lse: Tensor, joint: Tensor) -> Tensor:
    """Weight exp(lse - joint) of one side, 0 for an empty one."""
    return torch.where(lse == -INF, torch.zeros_like(lse), torch.exp(lse - joint))


def weighted(out: Tensor, weight: Tensor) -> Tensor:
    """out * weight; an empty side adds 0 whatever it holds."""
    return torch.where(weight[..., None] > 0, out * weight[..., None], torch.zeros_like(out))


@dataclass(frozen=True, slots=True)
class MergeSites:
    """Error sites of the merge; right by default."""

    inputs: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]] = lambda *sides: sides
    joint: Callable[[Tensor, Tensor], Tensor] = joint_lse
    share: Callable[[Tensor, Tensor], Tensor] = share
    weighted: Callable[[Tensor, Tensor], Tensor] = weighted
    total: Callable[[Tensor, Tensor], Tensor] = lambda a, b: a + b
    output: Callable[[Tensor, torch.dtype], Tensor] = lambda out, dtype: out.to(dtype)
    lse: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda joint, lse_a, lse_b: joint


MERGE_SITES = MergeSites()


def merge_pair(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, sites: MergeSites
) -> tuple[Tensor, Tensor]:
    """The merge in fp32: out [.., v], lse [..]."""
    joint = sites.joint(lse_a, lse_b)
    a = sites.weighted(out_a, sites.share(lse_a, joint))
    b = sites.weighted(out_b, sites.share(lse_b, joint))
    return sites.total(a, b), sites.lse(joint, lse_a, lse_b)


def merge_lse(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, sites: MergeSites = MERGE_SITES
) -> tuple[Tensor, Tensor]:
    """Merge of two results over disjoint keys.

    Shapes: out_a, out_b [s, h, v]; lse_a, lse_b [s, h] natural log. Returns out in the dtype of ``out_a``, lse fp32.
    """
    dtype = out_a.dtype
    out_a, lse_a, out_b, lse_b = sites.inputs(out_a, lse_a, out_b, lse_b)
    out, lse = merge_pair(out_a.float(), lse_a.float(), out_b.float(), lse_b.float(), sites)
    return sites.output(out, dtype), lse
