"""All stages, run one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .model import Model, Weights
from .table import DRAFT_STAGES, RANK_STAGES, STAGES, Function


def run(
    m: Model,
    w: Weights,
    hidden: Tensor,
    queries: int,
    *,
    indices: Tensor | None = None,
    functions: Mapping[str, Function] | None = None,
    first: int = 0,
    drafts: tuple[Tensor, Tensor] | None = None,
    ranks: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Every intermediate by name, for hidden states [t, x] of which the last ``queries`` are new.

    ``indices``: the selection of an earlier layer, for a shared one. A model without an indexer attends to all keys.
    ``functions``: stages to exchange, by name. ``first``: position of the first token. ``drafts``: hidden states and
    embeddings to make a draft input of. ``ranks``: context-parallel ranks, to attend with too, and their interleave.
    """
    positions = torch.arange(first, first + len(hidden))
    cut = len(hidden) - queries
    known: dict[str, Any] = {"hidden": hidden, "new": hidden[cut:], "positions": positions}
    known["new_positions"] = positions[cut:]
    if indices is None and not m.index_heads:
        last = torch.arange(cut, len(hidden))[:, None]
        every = torch.arange(len(hidden))[None].expand(queries, -1)
        indices = torch.where(every <= last, every, -1)
    if indices is not None:
        known["indices"] = indices
    if drafts is not None:
        known |= zip(("previous", "embedded"), drafts, strict=True)
    if ranks is not None:
        known |= zip(("ranks", "interleave"), ranks, strict=True)
    for stage in (*(DRAFT_STAGES if drafts else ()), *STAGES, *(RANK_STAGES if ranks else ())):
        if stage.indexer and indices is not None:
            continue
        function = (functions or {}).get(stage.name, stage.function)
        result = function(m, w, **{keyword: known[name] for keyword, name in stage.inputs.items()})
        known |= zip(stage.outputs, result if isinstance(result, tuple) else (result,), strict=True)
    return known
