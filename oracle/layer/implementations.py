"""Shipped implementations as the operators of a layer: what a kernel declares about its LSE is made the references'.

A layer merges partials by a natural LSE that is -inf for a query without keys. A kernel in base 2, or with another
value there, is converted by its contract. One without an LSE gives NaN, so that a merge of it cannot pass unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ...optimized.implementation import Facts, Implementation
from ...reference.layer import Operators
from ..errors import Unsupported, unknown
from ..guests.known import find
from ..judge.attention import SENTINEL

#: Implementations of every operator of a layer, by name of the set; all of one layer run with one set. The first that
#: runs here is taken. FlashInfer has no indexer for Hopper.
SETS: Mapping[str, tuple[str, ...]] = {
    "torch": (
        "dense_mha/eager",
        "masked_mha/sdpa-math",
        "sparse_mqa/gather",
        "indexer_scores/torch",
        "topk_select/sort",
        "merge_lse/torch",
    ),
    "triton": (
        "dense_mha/triton",
        "masked_mha/triton",
        "sparse_mqa/triton",
        "indexer_scores/triton",
        "topk_select/triton",
        "merge_lse/triton",
    ),
    "flashinfer": (
        "dense_mha/flashinfer-fa3",
        "dense_mha/flashinfer-fa2",
        "masked_mha/flashinfer-fa2",
        "sparse_mqa/flashinfer-fa3",
        "sparse_mqa/flashinfer-fa2",
        "indexer_scores/triton",
        "topk_select/triton",
        "merge_lse/flashinfer-states",
    ),
}


def chosen(name: str, facts: Facts) -> tuple[Implementation, ...]:
    """The implementations of a set that run on ``facts``, one an operator.

    Raises BadInput for an unknown set, and Unsupported with the last candidate's reason where an operator has none.
    """
    if name not in SETS:
        raise unknown("implementations", name, SETS)
    found: dict[str, Implementation] = {}
    reasons: dict[str, str] = {}
    for one in map(find, SETS[name]):
        reason = one.supports({**facts, "operator": one.operator})
        if reason is None:
            found.setdefault(one.operator, one)
        else:
            reasons[one.operator] = f"{one.name}: {reason}"
    for operator, reason in reasons.items():
        if operator not in found:
            raise Unsupported(f"implementations {name}: {reason}")
    return tuple(found.values())


def operators_of(implementations: Sequence[Implementation]) -> Operators:
    """Functions with the keyword names of the references, for :class:`Parts`."""
    return {one.operator: in_layer(one) for one in implementations}


def in_layer(one: Implementation) -> Callable[..., tuple[Any, ...]]:
    """One implementation, with its LSE in the layer's convention."""
    contract = one.contract

    def call(**inputs: Any) -> tuple[Any, ...]:
        if one.operator == "merge_lse" and contract.lse_base == "2":
            inputs = {name: x / math.log(2) if name.startswith("lse") else x for name, x in inputs.items()}
        outputs = one.prepare(**inputs)()
        if one.operator not in ("dense_mha", "masked_mha", "sparse_mqa", "merge_lse"):
            return outputs
        out = outputs[0]
        if contract.lse_base is None:
            return out, torch.full(out.shape[:2], math.nan, device=out.device)
        return out, natural(outputs[1], contract)

    return call


def natural(lse: Tensor, contract: Contract) -> Tensor:
    """Natural log units and -inf for queries without keys, from what the contract declares."""
    match contract.empty_lse:
        case "+inf":
            lse = torch.where(lse == math.inf, -math.inf, lse)
        case "sentinel":
            lse = torch.where(lse <= SENTINEL, -math.inf, lse)
    return lse * math.log(2) if contract.lse_base == "2" else lse
