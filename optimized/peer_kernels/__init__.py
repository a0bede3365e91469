"""Kernels of other projects that are not on PyPI by themselves: thin adapters, each with the contract that was found.

``locate`` says where they are looked for; ``attnoracle doctor`` what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from ..contract import Contract
from ..implementation import Implementation
from . import support

#: FlashMLA's sparse prefill: natural LSE (its README says base 2), out 0 and LSE +inf without a valid index (H200,
#: the build inside vLLM 0.26.0).
_FLASHMLA = Contract(probabilities=None, empty_lse="+inf", batch_invariant=True)
#: FlashMLA's sparse decode on fp8_ds_mla rows (``sm90/decode/sparse_fp8/splitkv_mla.cuh``): scales are rounded to bf16,
#: and so are their products with codes; P is summed before it is rounded; split keys are merged in fp32; -1 alone is
#: an invalid slot. Natural LSE, out 0 and +inf without a valid slot, whatever the sink. Scales seen on an H200 (the
#: build inside vLLM 0.26.0): the output is 3.1e-3 from exact attention over rounded scales, 5.2e-3 over those stored.
_FLASHMLA_DECODE = Contract(
    probabilities=None,
    dequantised="bf16",
    scale_read="bf16",
    partials="fp32",
    empty_lse="+inf",
    invalid_index="undefined",
)
#: Products of e4m3 are added in Hopper's fp8 accumulator: scores are 1.3e-4 off in the Frobenius norm (H200), where
#: fp32 accumulation would be 1e-7 off.
_DEEPGEMM = Contract(probabilities="fp32", accumulator="fp22", output="fp32", lse_base=None)
#: Without ``clean_logits``, as engines call it: what lies outside a window is not written.
_UNCLEAN = replace(_DEEPGEMM, outside_window="undefined")
#: Natural LSE; out 0 and LSE -inf for a query without keys, alone or beside others that have some (H200, 4.0.0b36).
_FA4 = Contract(probabilities=None)
#: vLLM 0.26.0: a side with LSE -inf or +inf has weight 0, and 0 times NaN is NaN; callers clear such sides first
#: (``mask_empty_context``). Two empty sides are 0 and -inf where their outputs are numbers. Seen on an H200.
_VLLM_MERGE = Contract(probabilities="fp32", empty_side="undefined", batch_invariant=True)
_VLLM_MASKED = replace(_VLLM_MERGE, empty_side="ignored")


def _load(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f".{module}", __name__), name)
    return function


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation(
        "dense_mha/fa4", _FA4, support.fa4, partial(_load, "fa4", "dense_mha"), partial(_load, "fa4", "plan_dense_mha")
    ),
    Implementation("sparse_mqa/flashmla", _FLASHMLA, support.flashmla, partial(_load, "flashmla", "sparse_mqa")),
    Implementation(
        "sparse_mqa/flashmla-decode",
        _FLASHMLA_DECODE,
        support.flashmla_decode,
        partial(_load, "flashmla_decode", "sparse_mqa"),
        partial(_load, "flashmla_decode", "plan"),
    ),
    Implementation(
        "indexer_scores/deepgemm", _DEEPGEMM, support.deepgemm, partial(_load, "deepgemm", "indexer_scores")
    ),
    Implementation(
        "indexer_scores/deepgemm-unclean",
        _UNCLEAN,
        support.deepgemm_unclean,
        partial(_load, "deepgemm", "unclean_scores"),
    ),
    Implementation(
        "paged_indexer_scores/deepgemm",
        _UNCLEAN,
        support.deepgemm_paged,
        partial(_load, "deepgemm", "paged_indexer_scores"),
        partial(_load, "deepgemm", "plan_paged"),
    ),
    Implementation("merge_lse/vllm", _VLLM_MERGE, support.vllm, partial(_load, "vllm_ops", "merge_lse")),
    Implementation(
        "merge_lse/vllm-masked", _VLLM_MASKED, support.vllm_masked, partial(_load, "vllm_ops", "merge_masked")
    ),
)
