"""The stages in order, and all of them run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import draft, indexer, latent, ranks
from .model import Model, Weights

Function = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Stage:
    """``inputs``: keyword -> name of the intermediate; ``outputs``: names of what it returns, in order."""

    name: str
    function: Function
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    indexer: bool = False
    """Left out by a layer that shares the selection of an earlier one."""


#: ``hidden`` are all tokens of the request, ``new`` the last s of them.
STAGES: tuple[Stage, ...] = (
    Stage("q_latent", latent.q_latent, {"hidden": "new"}, ("q_c",)),
    Stage("query", latent.query, {"q_c": "q_c"}, ("q",)),
    Stage("kv_latent", latent.kv_latent, {"hidden": "hidden"}, ("kv_c", "k_pe")),
    Stage("rotate_query", latent.rotate_query, {"q": "q", "positions": "new_positions"}, ("q_rotated",)),
    Stage("rotate_key", latent.rotate_key, {"k_pe": "k_pe", "positions": "positions"}, ("k_rotated",)),
    Stage("index_query", indexer.index_query, {"q_c": "q_c", "positions": "new_positions"}, ("index_q",), True),
    Stage("index_key", indexer.index_key, {"hidden": "hidden", "positions": "positions"}, ("index_k",), True),
    Stage("index_weights", indexer.index_weights, {"hidden": "new"}, ("weights",), True),
    Stage(
        "index_scores",
        indexer.index_scores,
        {"index_q": "index_q", "index_k": "index_k", "weights": "weights"},
        ("scores",),
        True,
    ),
    Stage("select", indexer.select, {"scores": "scores"}, ("indices",), True),
    Stage(
        "attention",
        latent.attention,
        {"q": "q_rotated", "kv_c": "kv_c", "k_pe": "k_rotated", "indices": "indices"},
        ("attended",),
    ),
    Stage("output", latent.output, {"attended": "attended"}, ("out",)),
)
#: Of a draft layer: makes its hidden states.
DRAFT_STAGES: tuple[Stage, ...] = (
    Stage(
        "draft_input",
        draft.draft_input,
        {"previous": "previous", "embedded": "embedded", "positions": "positions"},
        ("drafted",),
    ),
)
#: The attention once more, over context-parallel ranks.
RANK_STAGES: tuple[Stage, ...] = (
    Stage(
        "rank_attention",
        ranks.rank_attention,
        {
            "q": "q_rotated",
            "kv_c": "kv_c",
            "k_pe": "k_rotated",
            "indices": "indices",
            "ranks": "ranks",
            "interleave": "interleave",
        },
        ("outs", "lses"),
    ),
    Stage("merge_ranks", ranks.merge_ranks, {"outs": "outs", "lses": "lses"}, ("merged",)),
)


def stages_of(m: Model) -> tuple[Stage, ...]:
    """Every stage of a model, those of ranks last."""
    main = (stage for stage in STAGES if m.index_heads or not stage.indexer)
    return (*(DRAFT_STAGES if m.draft else ()), *main, *RANK_STAGES)


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
