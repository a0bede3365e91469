from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from attnoracle.oracle.policies import load_rules
from attnoracle.reference.routing import Deployment, Rules, TableRow, Threshold

BACKEND = "FLASHMLA_SPARSE"


def tiny(version: str) -> Rules:
    """Rules of a version with a decode threshold of 2 and a table that always takes masked MHA at the tiny dims."""
    return replace(
        load_rules(version),
        thresholds={(BACKEND, 100): Threshold(by_heads={}, otherwise=2)},
        tables={(12, 8, BACKEND, 1): TableRow(pure=((4096, 0),))},
    )


@pytest.fixture
def rules() -> Rules:
    return tiny("attnoracle")


@pytest.fixture
def versions() -> Callable[[str], Rules]:
    """Rules of any version at the tiny sizes."""
    return tiny


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(
        backend=BACKEND,
        device_family=100,
        local_heads=2,
        tensor_parallel=1,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
        index_topk=8,
        provider="attnoracle-triton",
        max_num_seqs=1,
        block_size=4,
        max_model_len=64,
    )
