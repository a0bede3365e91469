"""The stages in order: what each takes and gives, by the names of the intermediates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from . import draft, indexer, latent, ranks
from .model import Model

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
