"""Simulated kernels: torch functions that compute as a GPU kernel does, tile by tile, with every error site named.

Unchanged they are right under ``SIMULATED``; ``planted`` makes a faulty one by replacing sites.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ....optimized.contract import Contract
from .indexer import INDEXER_SITES, indexer_scores
from .layouts import LAYOUT_SITES, build_mask, convert_indices, gather, gather_index, quantize, write_cache, write_index
from .merge import MERGE_SITES, merge_lse
from .paged_indexer import PAGED_SITES, paged_indexer_scores
from .radix import SELECT_SITES, topk_select
from .sites import SITES
from .sparse import sparse_mqa
from .varlen import dense_mha, masked_mha

#: A function with the keyword names of its operator.
Kernel = Callable[..., tuple[Any, ...]]

#: What the simulated kernels promise: fp32 arithmetic, probabilities in the format of V.
SIMULATED = Contract(scores="fp32", probabilities=None, accumulator="fp32", exp_error=2.0**-22)

KERNELS: dict[str, Kernel] = {
    "dense_mha": dense_mha,
    "masked_mha": masked_mha,
    "sparse_mqa": sparse_mqa,
    "indexer_scores": indexer_scores,
    "paged_indexer_scores": paged_indexer_scores,
    "topk_select": topk_select,
    "merge_lse": merge_lse,
    "quantize": quantize,
    "write_cache": write_cache,
    "write_index": write_index,
    "gather": gather,
    "gather_index": gather_index,
    "convert_indices": convert_indices,
    "build_mask": build_mask,
}
#: Operators that move and convert bytes: no rounding but that of their formats.
LAYOUTS = ("quantize", "write_cache", "write_index", "gather", "gather_index", "convert_indices", "build_mask")
_DEFAULTS: dict[str, Any] = {
    "dense_mha": SITES,
    "masked_mha": SITES,
    "sparse_mqa": SITES,
    "indexer_scores": INDEXER_SITES,
    "paged_indexer_scores": PAGED_SITES,
    "topk_select": SELECT_SITES,
    "merge_lse": MERGE_SITES,
    **dict.fromkeys(LAYOUTS, LAYOUT_SITES),
}


def simulated(operator: str, **sites: Any) -> Kernel:
    """The simulated kernel of an operator with the given sites replaced."""
    return partial(KERNELS[operator], sites=replace(_DEFAULTS[operator], **sites))


def planted(operator: str, **sites: Any) -> Callable[[], Kernel]:
    """``simulated``, put off until it is called: what the catalogue stores."""
    return partial(simulated, operator, **sites)
