"""FlashInfer's attention, merge and selection kernels, each with the contract that was found for it.

Served: 0.6.18 (``support.OLDEST``) to the newest; ``interface.py`` names every call and parameter that is used, and CI
compares them with both ends. ``prepare`` does what FlashInfer does before a call: workspaces, ``plan()``, and
compilation at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ..contract import Contract
from ..implementation import Implementation
from . import support

#: fa3 (``attention/hopper/attention_updater.cuh``) sums P before it is rounded to the dtype of V. A request without
#: keys has out 0 and LSE -50000 (H200, 0.6.18.post1); a query without keys beside others that have some does not
#: (docs/findings.md).
_FA3 = Contract(
    probabilities=None,
    lse_base="2",
    row_sum="unrounded",
    empty_lse="sentinel",
)
#: fa2 sums P after it was rounded (``prefill.cuh`` and ``mla.cuh``: ``m16k16_rowsum_f16f16f32`` of the cast scores), so
#: its LSE carries the rounding of P: 8e-4 off over 2048 random keys where fa3 is 1.6e-5 off (H200). Split keys are
#: merged from parts in the dtype of the output. A query without keys has out 0 and LSE -50000 plus log2 of the
#: masked keys, -49992.9 for 128 of them (H200).
_FA2 = Contract(
    probabilities=None,
    partials="bf16",
    lse_base="2",
    row_sum="rounded",
    empty_lse="sentinel",
)
#: The MLA kernels write out 0 and a real -inf where a query has no page (``write_o``; seen on an H200); the page table
#: holds valid slots alone. Largest LSE error over 2048 random keys: 8e-4 with fa2, 1.6e-5 with fa3.
_MLA_FA3 = Contract(probabilities=None, partials="bf16", lse_base="2", row_sum="unrounded")
_MLA_FA2 = Contract(probabilities=None, partials="bf16", lse_base="2", row_sum="rounded")
#: ``MergeStateKernel`` takes and gives base 2 and multiplies an empty side by 0, whatever it holds; two empty sides
#: are NaN (-inf - -inf). ``merge_states`` has 0 and -50000 there (H200).
_MERGE = Contract(probabilities="fp32", lse_base="2", empty_side="undefined", batch_invariant=True)
_TOPK = Contract(probabilities="fp32", lse_base=None, index_space="request-local", deterministic=False)


def _load(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f".{module}", __name__), name)
    return function


def _entry(
    name: str, contract: Contract, supports: support.Supports, module: str, function: str, plan: str | None = None
) -> Implementation:
    planned = partial(_load, module, plan) if plan else None
    return Implementation(name, contract, supports, partial(_load, module, function), planned)


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _entry("dense_mha/flashinfer-fa2", _FA2, support.dense_fa2, "ragged", "dense_fa2", "plan_dense_fa2"),
    _entry("dense_mha/flashinfer-fa3", _FA3, support.dense_fa3, "ragged", "dense_fa3", "plan_dense_fa3"),
    _entry("masked_mha/flashinfer-fa2", _FA2, support.masked_fa2, "ragged", "masked_fa2", "plan_masked_fa2"),
    _entry("sparse_mqa/flashinfer-fa2", _MLA_FA2, support.mla_fa2, "mla", "sparse_fa2", "plan_fa2"),
    _entry("sparse_mqa/flashinfer-fa3", _MLA_FA3, support.mla_fa3, "mla", "sparse_fa3", "plan_fa3"),
    _entry("merge_lse/flashinfer-state", _MERGE, support.merge, "merge", "merge_state"),
    _entry("merge_lse/flashinfer-states", _MERGE, support.merge, "merge", "merge_states"),
    _entry("topk_select/flashinfer", _TOPK, support.select, "select", "top_k"),
    _entry("topk_select/flashinfer-ragged", _TOPK, support.select, "select", "ragged_transform"),
)
