"""Merging two attention results over disjoint sets of keys.

    lse = ln(exp(lse_a) + exp(lse_b))
    out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

Natural logarithm. A side with lse = -inf saw no key: its weight is 0 whatever its out holds. Both empty: out = 0 and
lse = -inf.

Source: Dao et al. 2022 (arXiv:2205.14135), section 3.1; vLLM 0.33.0 ``vllm/v1/attention/ops/merge_attn_states.py``.

Shapes:
    out_a, out_b: [s, h, v]    lse_a, lse_b: [s, h]    out: [s, h, v]    lse: [s, h]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, compute_dtype


def merge_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse over the keys of both sides, in the compute dtype. Raises ValueError for shapes that differ."""
    bind_sizes(("out_a", out_a, "s h v"), ("lse_a", lse_a, "s h"), ("out_b", out_b, "s h v"), ("lse_b", lse_b, "s h"))
    dtype = compute_dtype(out_a, lse_a, out_b, lse_b)
    lse = torch.logaddexp(lse_a.to(dtype), lse_b.to(dtype))
    return _share(out_a.to(dtype), lse_a.to(dtype), lse) + _share(out_b.to(dtype), lse_b.to(dtype), lse), lse


def _share(out: Tensor, lse_side: Tensor, lse: Tensor) -> Tensor:
    """exp(lse_side - lse) out, and 0 where the side saw no key."""
    empty = (lse_side == -torch.inf)[..., None]
    return ((lse_side - lse).exp()[..., None] * out).masked_fill_(empty, 0.0)
