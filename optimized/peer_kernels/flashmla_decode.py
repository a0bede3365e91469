"""Sparse MQA by FlashMLA's sparse decode, on pages of fp8_ds_mla rows, called as vLLM calls it for decode tokens.

Every query is a request of one token. The kernel knows -1 alone as invalid, and no lengths: what lies behind a length
is handed over as -1. Which query is split over how many multiprocessors is decided on the first call, from the shapes
alone, and kept.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..implementation import Run
from .flashmla import HEADS, library, padded

#: The kernel takes slots by so many.
SLOTS = 64
#: Bytes of a row: 512 codes, 4 scales, 64 rotated dims.
ROW = 656


@cache
def _forward() -> Any:
    library()
    return torch.ops._flashmla_C.sparse_decode_fwd


def plan(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> Run:  # fmt: skip
    """``sparse_mqa``, with the schedule made. Raises ValueError for rows that are not those of fp8_ds_mla."""
    if cache_format != "fp8_ds_mla" or kv.shape[-1] != ROW or (q_scale, k_scale) != (1.0, 1.0):
        given = f"{cache_format} rows of {kv.shape[-1]}, scales {q_scale} and {k_scale}"
        raise ValueError(f"kv: expected fp8_ds_mla rows of {ROW} bytes and no scales of the whole cache, got {given}")
    if not kv.is_contiguous():
        raise ValueError(f"kv: expected rows of {ROW} bytes without gaps, got strides {kv.stride()}")
    heads = q.shape[1]
    forward = _forward()
    # later builds take an output buffer as well
    rest = (None,) if len(forward.default._schema.arguments) > 12 else ()

    def call(schedule: Tensor | None, splits: Tensor | None) -> tuple[Tensor, ...]:
        pages = kv[:, None, None] if kv.dim() == 2 else kv[:, :, None]
        table = padded(counted(indices, lengths), 1, SLOTS, fill=-1)
        sinks = None if sink is None else padded(sink, 0, HEADS, fill=0.0)
        answer: tuple[Tensor, ...] = forward(
            padded(q, 1, HEADS)[:, None], pages, table[:, None], None, sinks, schedule, splits, None, None, None,
            value_dim, scale, *rest,
        )  # fmt: skip
        return answer

    schedule, splits = call(None, None)[2:]

    def run() -> tuple[Tensor, Tensor]:
        out, lse = call(schedule, splits)[:2]
        return out[:, 0, :heads], lse[:, :heads, 0]

    return run


def sparse_mqa(
    q: Tensor, kv: Tensor, indices: Tensor, *, scale: float, value_dim: int, lengths: Tensor | None = None,
    sink: Tensor | None = None, cache_format: str = "model", q_scale: float = 1.0, k_scale: float = 1.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """q bf16 [s,h,576], kv uint8 [n,656] or [p,page,656], indices int32 [s,k] -> out [s,h,512], lse fp32 [s,h].

    The LSE is natural, +inf for a query without keys; the kernel gives it as [s, h, 1].
    """
    return plan(
        q, kv, indices, scale=scale, value_dim=value_dim, lengths=lengths, sink=sink, cache_format=cache_format,
        q_scale=q_scale, k_scale=k_scale,
    )()  # fmt: skip


def counted(indices: Tensor, lengths: Tensor | None) -> Tensor:
    """``indices`` [s,k] with -1 behind each length."""
    if lengths is None:
        return indices
    slot = torch.arange(indices.shape[1], device=indices.device)
    return torch.where(slot < lengths[:, None], indices, -1)
