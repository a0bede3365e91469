"""vLLM's Triton merge of partial attention results."""

from __future__ import annotations

import torch
from torch import Tensor


def merge_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """out_a, out_b [s,h,v], lse_a, lse_b fp32 [s,h] -> out [s,h,v], lse fp32 [s,h]; its LSEs are stored [h,s]."""
    from vllm.v1.attention.ops.triton_merge_attn_states import merge_attn_states

    out = torch.empty_like(out_a)
    lse = torch.empty(lse_a.shape[::-1], dtype=torch.float32, device=lse_a.device)
    merge_attn_states(out, out_a, lse_a.T.contiguous(), out_b, lse_b.T.contiguous(), lse)
    return out, lse.T
