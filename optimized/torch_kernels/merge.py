"""Merge of two partial attentions by their natural-log LSEs."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """out_a, out_b [s,h,v], lse_a, lse_b fp32 [s,h] -> out [s,h,v], lse fp32 [s,h]; in fp32 until the last rounding.

    A side with lse = -inf is empty: its weight is 0 whatever its out holds.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    base = lse.masked_fill(lse.isneginf(), 0.0)
    out = torch.zeros(out_a.shape, dtype=torch.float32, device=out_a.device)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(part_lse - base)[..., None]
        out += torch.where(part_lse.isneginf()[..., None], 0.0, weight * part.float())
    return out.to(out_a.dtype), lse
