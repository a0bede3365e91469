"""torch's own kernels, and plain torch where it has none, each with the contract that was found for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from .. import triton_runtime
from ..contract import Contract
from ..implementation import Implementation
from . import support

#: Largest relative error of the exp in torch's CPU flash attention for bf16 and fp16, as the error of the LSE shows it:
#: 1.04e-4 where one query weighs 2047 equal keys against its own maximum, with AVX2 and AVX-512 alike (torch 2.13); its
#: scalar code and its fp32 kernel stay below 4e-7, torch.exp and torch.softmax below 2e-7.
_FAST_EXP = 2.0**-13

#: bf16 and fp16 are widened first, so P is fp32 in every case; fully masked rows are 0; no LSE.
_MATH = Contract(probabilities="fp32", lse_base=None)
#: P is rounded to the dtype of V after it was summed; a row masked all over has out 0 and LSE 0 (not -inf).
_FLASH_CPU = Contract(probabilities=None, exp_error=_FAST_EXP, empty_lse="undefined")
_FLASH_FP32 = Contract(probabilities="fp32", empty_lse="undefined")
_CUDA = Contract(probabilities=None, empty_out="undefined", empty_lse="undefined")
_CUDA_NO_LSE = Contract(probabilities=None, empty_out="undefined", empty_lse="undefined", lse_base=None)
_ROUNDED = Contract(probabilities=None)
_FP8 = Contract(probabilities="e4m3", probability_scale=448.0)
#: The mask is planned: its words are read by ``prepare`` alone (``flex.py``), so no graph may follow changed ones.
_FLEX = Contract(probabilities=None, exp_error=_FAST_EXP, lse_base=None)
_SCORES = Contract(probabilities="fp32", output="fp32", lse_base=None)
_TOPK = Contract(probabilities="fp32", lse_base=None, index_space="request-local")
_TOPK_SORTED = Contract(
    probabilities="fp32", lse_base=None, index_space="request-local", topk_ties="lowest-index", batch_invariant=True
)
_MERGE = Contract(probabilities="fp32", batch_invariant=True)
#: Bytes and indices are exact and belong to one token or query each.
_LAYOUT = Contract(probabilities="fp32", lse_base=None, batch_invariant=True)


def _load(module: str, name: str) -> Callable[..., tuple[Any, ...]]:
    function: Callable[..., tuple[Any, ...]] = getattr(import_module(f".{module}", __name__), name)
    return function


def _load_flex(name: str) -> Callable[..., Any]:
    triton_runtime.prepare_if_available()  # the compiler imports Triton, which would settle whether it interprets
    return _load("flex", name)


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation("dense_mha/sdpa-math", _MATH, support.attention, partial(_load, "sdpa", "math")),
    Implementation("dense_mha/sdpa-flash", _FLASH_CPU, support.flash_cpu, partial(_load, "sdpa", "flash")),
    Implementation("dense_mha/sdpa-flash-fp32", _FLASH_FP32, support.flash_cpu_fp32, partial(_load, "sdpa", "flash")),
    Implementation("dense_mha/sdpa-flash-cuda", _CUDA, support.flash_cuda, partial(_load, "sdpa", "flash_cuda")),
    Implementation("dense_mha/sdpa-efficient", _CUDA_NO_LSE, support.efficient, partial(_load, "sdpa", "efficient")),
    Implementation("dense_mha/sdpa-cudnn", _CUDA_NO_LSE, support.cudnn, partial(_load, "sdpa", "cudnn")),
    Implementation("dense_mha/eager", _ROUNDED, support.rounded_attention, partial(_load, "eager", "dense_mha")),
    Implementation("masked_mha/sdpa-math", _MATH, support.attention, partial(_load, "sdpa", "masked_math")),
    Implementation(
        "masked_mha/flex",
        _FLEX,
        support.flex,
        partial(_load_flex, "masked_mha"),
        partial(_load_flex, "plan_masked_mha"),
    ),
    Implementation("sparse_mqa/gather", _ROUNDED, support.sparse, partial(_load, "gather", "sparse_mqa")),
    Implementation("sparse_mqa/gather-fp8", _FP8, support.sparse_fp8, partial(_load, "gather", "sparse_mqa_fp8")),
    Implementation("indexer_scores/torch", _SCORES, support.indexer, partial(_load, "indexer", "indexer_scores")),
    Implementation(
        "paged_indexer_scores/torch", _SCORES, support.paged_indexer, partial(_load, "indexer", "paged_indexer_scores")
    ),
    Implementation("topk_select/torch", _TOPK, support.anything, partial(_load, "topk", "topk_select")),
    Implementation("topk_select/sort", _TOPK_SORTED, support.anything, partial(_load, "topk", "sorted_select")),
    Implementation("merge_lse/torch", _MERGE, support.attention, partial(_load, "merge", "merge_lse")),
    Implementation("quantize/torch", _LAYOUT, support.anything, partial(_load, "quantiser", "quantize")),
    Implementation("write_cache/torch", _LAYOUT, support.anything, partial(_load, "cache_rows", "write_cache")),
    Implementation("write_index/torch", _LAYOUT, support.anything, partial(_load, "cache_pages", "write_index")),
    Implementation("gather/torch", _LAYOUT, support.anything, partial(_load, "cache_rows", "gather")),
    Implementation("gather_index/torch", _LAYOUT, support.anything, partial(_load, "cache_pages", "gather_index")),
    Implementation("convert_indices/torch", _LAYOUT, support.anything, partial(_load, "paging", "convert_indices")),
    Implementation("build_mask/torch", _LAYOUT, support.anything, partial(_load, "bit_mask", "build_mask")),
)
