"""From a case to the tensors that a kernel is given."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..case import Case
from ..geometry import Geometry
from .arena import Arena
from .batch import batch_of
from .cache import sparse_mqa
from .dense import dense_mha, masked_mha
from .index_pages import paged_indexer_scores
from .layouts import build_mask, convert_indices, gather, gather_index, quantize, write_cache, write_index
from .options import check
from .ranking import indexer_scores, merge_lse, topk_select
from .site import Site
from .size import require_room
from .tensors import Inputs

_BUILDERS: dict[str, Callable[[Site], dict[str, object]]] = {
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


def make(case: Case, geometry: Geometry, device: torch.device | str = "cpu") -> Inputs:
    """The inputs of ``case``, the same values on every device.

    Raises BadInput for a case that cannot be (a kind or an option that does not fit the operator, no top-k where one is
    needed, a geometry without an indexer) and Unsupported for one that this device cannot hold.
    """
    check(case, geometry)
    require_room(case, geometry, torch.device(device))
    arena = Arena(case.layout, device)
    options = _BUILDERS[case.operator](Site(case, geometry, batch_of(case, arena.device), arena))
    return Inputs(case, geometry, {name: guarded.tensor for name, guarded in arena.tensors.items()}, options, arena)
