"""What a call should return and what its contract allows at every element: the judge's own sums, kept whole.

For cases of the size that diagnosis works on; a production case is shrunk first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...reference.layouts import decode_rows
from ..judge import indexer, merge
from ..judge.attention_call import as_read, attention_chunks
from ..judge.attention_call import declared as spelled_out
from ..judge.bounds import FALSE_ALARM, SHARES, deviations
from ..judge.budget import budget
from ..judge.formats import SMALLEST_SUBNORMAL, format_of
from ..judge.moments import moments
from ..operators import operator as by_name

Arguments = Mapping[str, Any]
ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")
INDEXERS = ("indexer_scores", "paged_indexer_scores")


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """By output name: the exact answer and the budget, both fp64; empty for the selection, which has none."""

    exact: dict[str, Tensor]
    allowed: dict[str, Tensor]
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the axes of an output, where they are not those of attention, scores or a selection."""


def expectation(operator: str, a: Arguments, contract: Contract) -> Expectation:
    """The exact answer and the budget of one call."""
    if operator in ATTENTION:
        return _attention(operator, a, contract)
    if operator in INDEXERS:
        blocks = (indexer.packed if operator == "indexer_scores" else indexer.paged)(**a)
        (shape,) = by_name(operator).shapes(a)
        exact, allowed = indexer.expectation(contract, blocks, shape)
        return Expectation({"scores": exact}, {"scores": allowed})
    if operator == "merge_lse":
        exact, allowed, lse, lse_allowed = merge.expectation(contract, **a)[:4]
        return Expectation({"out": exact, "lse": lse}, {"out": allowed, "lse": lse_allowed})
    return Expectation({}, {})


def _attention(operator: str, a: Arguments, contract: Contract) -> Expectation:
    q = a["q"]
    values = a["v"] if "v" in a else a["kv"]
    width = int(a["value_dim"]) if "value_dim" in a else values.shape[-1]
    declared = spelled_out(a, contract)
    assert declared.probabilities is not None
    cell = UNIT_ROUNDOFF[declared.probabilities]
    output = contract.output or ("bf16" if q.dtype.itemsize == 1 else format_of(q.dtype))
    s, h = q.shape[:2]
    out, allowed = (torch.zeros(s, h, width, dtype=torch.float64) for _ in range(2))
    lse, lse_allowed = (torch.zeros(s, h, dtype=torch.float64) for _ in range(2))
    z = deviations(s * h * width, FALSE_ALARM / SHARES)
    for chunk in attention_chunks(operator, as_read(a, contract)):
        underflow = declared.probabilities in SMALLEST_SUBNORMAL
        rounded = declared.dequantised is not None
        m = moments(chunk, a["scale"], cell, a.get("sink"), underflow=underflow, dequantised=rounded)
        b = budget(replace(m, out=torch.nan_to_num(m.out, 0.0, 0.0, 0.0)), declared, output, q.shape[-1], z, 1.0)
        out[chunk.rows] = chunk.place(m.out).cpu()
        allowed[chunk.rows] = chunk.place(torch.minimum(b.half + z * b.variance.sqrt() + b.working, b.certain)).cpu()
        lse[chunk.rows], lse_allowed[chunk.rows] = chunk.place(m.lse).cpu(), chunk.place(b.lse).cpu()
    return Expectation({"out": out, "lse": lse}, {"out": allowed, "lse": lse_allowed})


def cache_rows(a: Arguments) -> int:
    """Rows of the cache of a sparse call, pages taken apart."""
    return int(a["kv"].shape[:-1].numel())


def plain_cache(a: Arguments) -> Tensor:
    """The cache of a sparse call as numbers [n, c+r] on the CPU, fp64."""
    rows: Tensor = a["kv"].detach().cpu().flatten(0, -2)
    if a.get("cache_format", "model") == "model":
        return rows.double()
    k_scale = float(a.get("k_scale", 1.0))
    return decode_rows(rows, a["cache_format"], latent=int(a["value_dim"]), k_scale=k_scale).double()


def normalised(outputs: Mapping[str, Tensor], contract: Contract, exact: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Observed outputs as fp64 on the CPU, in natural logarithms, with the declared conventions for empty rows."""
    found = {name: value.detach().cpu().to(torch.float64) for name, value in outputs.items()}
    if "lse" not in found or "lse" not in exact:
        return found
    if contract.lse_base == "2":
        found["lse"] = found["lse"] * math.log(2.0)
    empty = exact["lse"] == -math.inf
    if contract.empty_lse != "-inf" and found["lse"].shape == empty.shape:
        found["lse"] = torch.where(empty, exact["lse"], found["lse"])
    if contract.empty_out != "zero" and found["out"].shape == exact["out"].shape:
        found["out"] = torch.where(empty[..., None], exact["out"], found["out"])
    return found
