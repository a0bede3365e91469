"""Which fields of a contract say something about which operators: the rest of a contract is not asked for there."""

from __future__ import annotations

from collections.abc import Mapping

_ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")
_SCORES = ("indexer_scores", "paged_indexer_scores")
_MERGED = (*_ATTENTION, "merge_lse")
_QUANTISERS = ("quantize", "write_cache", "write_index")
_GATHERS = ("gather", "gather_index")
#: Field to the operators that it concerns; a field that is not here concerns all.
CONCERNS: Mapping[str, tuple[str, ...]] = {
    "scores": _ATTENTION,
    "probabilities": _ATTENTION,
    "probability_scale": _ATTENTION,
    "dequantised": ("sparse_mqa",),
    "accumulator": (*_ATTENTION, *_SCORES),
    "partials": _ATTENTION,
    "output": (*_MERGED, *_SCORES),
    "exp_error": _MERGED,
    "row_sum": _ATTENTION,
    "lse_base": _MERGED,
    "lse_error": _ATTENTION,
    "empty_out": _ATTENTION,
    "empty_lse": _ATTENTION,
    "empty_side": ("merge_lse",),
    "invalid_index": ("sparse_mqa", *_GATHERS),
    "duplicates": ("sparse_mqa",),
    "head_multiple": _ATTENTION,
    "index_space": ("sparse_mqa", "topk_select"),
    "outside_window": _SCORES,
    "causal_alignment": ("dense_mha", "masked_mha"),
    "topk_order": ("topk_select",),
    "topk_short": ("topk_select",),
    "topk_ties": ("topk_select",),
    "scale_quotient": _QUANTISERS,
    "scale_read": (*_GATHERS, "sparse_mqa", "paged_indexer_scores"),
    "nonfinite": _QUANTISERS,
    "compaction": ("convert_indices",),
    "mask_rest": ("build_mask",),
}


def concerns(field: str, operator: str) -> bool:
    """Whether a field of the contract says something about an operator."""
    return operator in CONCERNS.get(field, (operator,))
