"""Masked attention by compiled FlexAttention: the whole packed batch in one call, the mask read inside the kernel.

Queries and keys are padded to whole blocks of the mask, as engines do who keep the number of kernels that they compile
small: a padded key is seen by nobody, a padded query sees nothing and is cut off.

``plan`` unpacks the mask, finds its blocks and compiles; a run only pads (where it must) and attends. The words of the
mask are therefore read when it is planned: whoever changes them plans anew. Queries, keys and values are read by each
run. One kernel serves all masks of one shape, since the compiler sees the mask as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..implementation import Run
from .precision import exact_fp32
from .requests import requests, unpack_mask

#: Tokens of a block of FlexAttention's mask.
BLOCK = 128


@cache
def _compiled() -> Callable[..., Any]:
    # dynamic shapes do not compile on CPU (torch 2.13 emits undeclared sizes); fullgraph: an error, never eager
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def plan_masked_mha(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> Run:
    """``masked_mha`` planned for this mask and these lengths. Compiles anew for each number of blocks of queries and
    keys."""
    rows, columns = _whole(q), _whole(k)
    seen = torch.zeros(rows, columns, dtype=torch.bool, device=q.device)
    for request in requests(cu_q, cu_k):
        seen[request.queries, request.keys] = unpack_mask(mask, request, causal)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return seen[query, key]

    blocks = create_block_mask(visible, None, None, rows, columns, device=str(q.device), BLOCK_SIZE=BLOCK)

    @exact_fp32
    def run() -> tuple[Tensor]:
        heads_first = (_padded(x).transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        with torch.no_grad():
            out = _compiled()(*heads_first, block_mask=blocks, scale=scale)
        return (out[0, :, : q.shape[0]].transpose(0, 1).contiguous(),)

    # the compiler's limit on kernels of one function is for runaway loops, not for many shapes
    with torch._dynamo.config.patch(recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16):
        run()
    return run


def masked_mha(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``masked_mha`` without its LSE, which FlexAttention does not return on CPU: planned and run."""
    return plan_masked_mha(q, k, v, mask, cu_q, cu_k, scale=scale, causal=causal)()


def _whole(x: Tensor) -> int:
    """Tokens of the blocks that hold those of x."""
    return -(-x.shape[0] // BLOCK) * BLOCK


def _padded(x: Tensor) -> Tensor:
    """x with whole blocks of tokens; itself where it has them, since a copy would be timed as the kernel's."""
    more = _whole(x) - x.shape[0]
    return functional.pad(x, (0, 0, 0, 0, 0, more)) if more else x
