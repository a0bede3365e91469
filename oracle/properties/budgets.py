"""How far rounding may move one answer: the judge's own budgets, element by element.

The sizes come from the inputs and the declared formats, as for a verdict. The answer that a verdict compares with is
computed on the way and dropped: a property compares answers of the implementation. Bounds lie where the answers do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ..judge import indexer, merge
from ..judge.attention_call import attention_answer, attention_chunks
from ..judge.bounds import FALSE_ALARM, SHARES, deviations
from ..judge.budget import budget
from ..judge.formats import SMALLEST_SUBNORMAL
from ..judge.moments import moments

#: All properties of an implementation together share the chance of a false alarm that one verdict has.
SHARED_BY = 48


def attention_budget(
    name: str, a: dict[str, Any], outputs: tuple[Tensor, ...], contract: Contract
) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds on the errors of out [s,h,v] and of the LSE [s,h] (natural log), and which rows [s,h] see no key."""
    answer = attention_answer(name, a, outputs, contract)
    s, h, v = answer.out.shape
    device = answer.out.device
    out = torch.zeros(s, h, v, dtype=torch.float64, device=device)
    lse = torch.zeros(s, h, dtype=torch.float64, device=device)
    empty = torch.ones(s, h, dtype=torch.bool, device=device)
    z = deviations(s * h * v, FALSE_ALARM / SHARES / SHARED_BY)
    declared = answer.contract
    for chunk in attention_chunks(name, a):
        m = moments(
            chunk,
            a["scale"],
            answer.cell,
            a.get("sink"),
            underflow=declared.probabilities in SMALLEST_SUBNORMAL,
            dequantised=declared.dequantised is not None,
        )
        b = budget(m, declared, answer.output, answer.depth, z, answer.multiplicity)
        allowed = torch.minimum(b.half + z * b.variance.sqrt() + b.working, b.certain)
        out[chunk.rows] = chunk.place(allowed)
        lse[chunk.rows] = chunk.place(b.lse)
        empty[chunk.rows] = chunk.place(m.empty)
    return out, lse, empty


def scores_budget(name: str, a: dict[str, Any], outputs: tuple[Tensor, ...], contract: Contract) -> Tensor:
    """Bound on the error of indexer scores [s,t]."""
    blocks = indexer.packed(**a) if name == "indexer_scores" else indexer.paged(**a)
    return indexer.expectation(contract, blocks, outputs[0].shape)[1].to(outputs[0].device)


def merge_budget(a: dict[str, Any], outputs: tuple[Tensor, ...], contract: Contract) -> tuple[Tensor, Tensor]:
    """Bounds on the errors of a merge: out [s,h,v], LSE [s,h]."""
    _, out, _, lse, _ = merge.expectation(contract, **a)
    return out.to(outputs[0].device), lse.to(outputs[0].device)
