"""A model small enough to build every input of in a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.geometry import Geometry
from attnoracle.oracle.inputs import Inputs, make


@pytest.fixture
def geometry() -> Geometry:
    return Geometry(
        name="tiny",
        heads=8,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        softmax_scale=0.25,
        index_n_heads=4,
        index_head_dim=16,
        index_topk=8,
    )


@pytest.fixture
def build(geometry: Geometry) -> Callable[..., Inputs]:
    """Inputs of a small ragged case, its fields changed by keyword."""

    def built(operator: str, **fields: Any) -> Inputs:
        common: dict[str, Any] = {"heads": 3, "q_lens": (3, 0, 1, 5), "k_lens": (140, 7, 0, 3), "topk": 24}
        if operator == "paged_indexer_scores":
            lens = fields.get("q_lens", (2, 2, 2, 2))
            fields = {"dtype": "e4m3", **fields, "q_lens": (max(1, *lens, 0),) * len(lens)}  # as many in every request
        return make(Case(operator=operator, geometry="tiny", **{**common, **fields}), geometry)

    return built
