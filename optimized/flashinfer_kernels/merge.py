"""Merges of partial attention by FlashInfer's cascade kernels; both LSEs and the result are base-2 logarithms."""

from __future__ import annotations

import flashinfer
import torch
from torch import Tensor


def merge_state(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """out_a, out_b [s,h,v], lse_a, lse_b fp32 [s,h] -> out [s,h,v], lse fp32 [s,h], by ``merge_state``."""
    out, lse = flashinfer.merge_state(out_a, lse_a, out_b, lse_b)
    return out, lse


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The same by ``merge_states``, which takes any number of parts stacked along dim 1."""
    out, lse = flashinfer.merge_states(torch.stack((out_a, out_b), 1), torch.stack((lse_a, lse_b), 1))
    return out, lse
