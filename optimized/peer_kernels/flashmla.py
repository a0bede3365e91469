"""Sparse MQA by FlashMLA's sparse prefill, called as vLLM calls it: heads padded to 64, slots to 128."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..latent_rows import require_model
from . import locate

#: The kernel is built for 64 and 128 heads, and loads slots 128 at a time.
HEADS = 64
SLOTS = 128


@cache
def library() -> None:
    """Load its extension: ``torch.ops._flashmla_C`` has its operators then. Raises ImportError if it is nowhere."""
    found = locate.FLASHMLA.find()
    if found is None:
        raise ImportError(locate.FLASHMLA.missing())
    torch.ops.load_library(str(found.path))  # type: ignore[no-untyped-call]


@cache
def _forward() -> Any:
    library()
    return torch.ops._flashmla_C.sparse_prefill_fwd


def sparse_mqa(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q [s,h,c+r], kv [n,c+r], indices [s,k] -> out [s,h,c], lse fp32 [s,h], natural; +inf for a query without keys."""
    require_model(cache_format, q_scale, k_scale)
    forward = _forward()
    heads = q.shape[1]
    queries, table = padded(q, 1, HEADS), padded(indices, 1, SLOTS, fill=-1)
    sinks = None if sink is None else padded(sink, 0, HEADS, fill=0.0)
    # later builds take an output buffer as well
    rest = (None,) if len(forward.default._schema.arguments) > 7 else ()
    out, _, lse = forward(queries, kv[:, None], table[:, None], scale, value_dim, sinks, lengths, *rest)
    return out[:, :heads], lse[:, :heads]


def padded(x: Tensor, axis: int, multiple: int, fill: float | None = None) -> Tensor:
    """``x`` with ``axis`` brought up to a multiple; what is added holds ``fill``, or whatever the memory held."""
    extent = -(-x.shape[axis] // multiple) * multiple
    if extent == x.shape[axis]:
        return x
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    wide = x.new_empty(shape) if fill is None else x.new_full(shape, fill)
    wide.narrow(axis, 0, x.shape[axis]).copy_(x)
    return wide
