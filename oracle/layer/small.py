"""The installation of a small model that sequences of steps run on: every route within a few tokens.

A prompt of up to 2 tokens counts as decode, one of up to 8 takes dense MHA, a longer one masked MHA, and with
``sparse_mla_force_mqa`` all of them sparse MQA.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ...reference.routing import Deployment, Rules, TableRow, Threshold
from ..policies import load_rules

_BACKEND, _THRESHOLD = "FLASHMLA_SPARSE", 2

DEPLOYMENT = Deployment(
    backend=_BACKEND,
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


@lru_cache
def small_rules(version: str = "attnoracle") -> Rules:
    """Rules of a version, with that threshold and a table that takes masked MHA at these dims wherever it can be."""
    d = DEPLOYMENT
    cell = (d.qk_head_dim, d.v_head_dim, _BACKEND, d.tensor_parallel)
    return replace(
        load_rules(version),
        thresholds={(_BACKEND, d.device_family): Threshold(by_heads={}, otherwise=_THRESHOLD)},
        tables={cell: TableRow(pure=((4096, 0),))},
    )
