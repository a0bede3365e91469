"""The query of a layer in the forms that its branches take.

Dense and masked MHA take cat(q_nope, rotated q_pe) [s, h, p+r]; sparse MQA takes cat(q_nope w_uk, rotated q_pe)
[s, h, c+r], possibly packed in e4m3. A fused layer prepares before it knows the route of a replay, so what it leaves
behind decides who rotates:

    ================  ==========================================  ===========================
                      MQA query prepared                          not prepared
    ================  ==========================================  ===========================
    model dtype       rotated q_pe is there                       rotated q_pe is there
    e4m3              only the pack: the MHA branch rotates       rotated q_pe is there
    ================  ==========================================  ===========================

Source: vLLM 0.33.0 ``vllm/models/deepseek_v32/attention.py``, which tells the cells apart by dtype, not by a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..mla import absorb_query
from .events import QueryForm
from .packing import pack_e4m3

#: (x [s, …, r], positions int64 [s]) -> x rotated
Rotate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A query tensor [s, h, width] and what was done to it."""

    tensor: Tensor
    form: QueryForm

    def rows(self, start: int, stop: int) -> Query:
        return Query(self.tensor[start:stop], self.form)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedQuery:
    """What the captured part of a layer leaves for its branches."""

    nope: Tensor
    """[s, h, p]."""
    pe: Tensor
    """[s, h, r], not rotated."""
    rotated: Tensor | None
    """[s, h, r] rotated; None where only the packed query holds it."""
    mqa: Query | None
    """The absorbed query; None where the route did not ask for it."""


def prepare_query(
    q: Tensor, positions: Tensor, *, w_uk: Tensor, rotate: Rotate, absorb: bool, q_scale: float | None
) -> PreparedQuery:
    """Rotate q [s, h, p+r] and, if ``absorb``, make the MQA query; ``q_scale`` packs it in e4m3 (None: model dtype)."""
    nope, pe = q[..., : w_uk.shape[1]], q[..., w_uk.shape[1] :]
    rotated = rotate(pe, positions).to(q.dtype)
    if not absorb:
        return PreparedQuery(nope, pe, rotated, None)
    absorbed = absorb_query(torch.cat((nope, rotated), -1), w_uk).to(q.dtype)
    form = QueryForm(absorbed.shape[-1], absorbed=True, rotations=1, packed=q_scale is not None)
    if q_scale is None:
        return PreparedQuery(nope, pe, rotated, Query(absorbed, form))
    return PreparedQuery(nope, pe, None, Query(pack_e4m3(absorbed, q_scale), form))


def mha_query(prepared: PreparedQuery, positions: Tensor, rotate: Rotate) -> Query:
    """cat(q_nope, rotated q_pe): rotates only where the rotated dims are in the pack alone."""
    rotated = prepared.rotated
    if rotated is None:
        rotated = rotate(prepared.pe, positions).to(prepared.nope.dtype)
    tensor = torch.cat((prepared.nope, rotated), -1)
    return Query(tensor, QueryForm(tensor.shape[-1], absorbed=False, rotations=1))
