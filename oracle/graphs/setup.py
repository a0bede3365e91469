"""The small models that sequences run on: every route within a few tokens.

A prompt of up to 2 tokens counts as decode, one of up to 8 takes dense MHA, a longer one masked MHA, and with
``sparse_mla_force_mqa`` all of them sparse MQA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from ...reference.arguments import compute_dtype
from ...reference.layer import Operators
from ...reference.routing import Deployment, Rules, TableRow, Threshold
from ...reference.topk_select import select_rows
from ..errors import unknown
from ..layer.rig import REFERENCE_OPERATORS, RigSizes
from ..policies import load_rules

BACKEND = "FLASHMLA_SPARSE"
THRESHOLD, TOPK, BLOCK, LONGEST = 2, 8, 4, 64
#: Most tokens of one step.
MOST = 48

SubjectName = Literal["fused", "generic", "packed", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One model: dated rules, an installation, sizes and operators."""

    name: str
    what: str
    rules: Rules
    deployment: Deployment
    sizes: RigSizes
    triton: bool = False

    def operators(self) -> Operators:
        """Operators that may be captured: none waits for the device."""
        if not self.triton:
            return {**REFERENCE_OPERATORS, "indexer_scores": _indexer_scores, "topk_select": _topk_select}
        from ..replay.operators import injected

        return injected("triton", self.sizes.device).operators


def _indexer_scores(*, q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor) -> tuple[Tensor]:
    """The reference's formula without its look at the scales, which would wait for the device."""
    dtype = compute_dtype(q, k, k_scale, weights)
    wanted = torch.einsum("sie,te->sit", q.to(dtype), k.to(dtype)).relu()
    scores = torch.einsum("si,sit->st", weights.to(dtype), wanted) * k_scale.to(dtype)
    column = torch.arange(k.shape[0], device=k.device)
    inside = (column >= ks[:, None]) & (column < ke[:, None])
    return (scores.masked_fill(~inside, -torch.inf),)


def _topk_select(*, scores: Tensor, ks: Tensor, ke: Tensor, k: int) -> tuple[Tensor]:
    """The reference without its look at the windows, which would wait for the device."""
    return (select_rows(scores, ks[:, None].long(), ke[:, None].long(), k).int(),)


@lru_cache
def tiny_rules(version: str = "attnoracle") -> Rules:
    """Rules of a version at the tiny dims; masked MHA wherever it can be."""
    return replace(
        load_rules(version),
        thresholds={(BACKEND, 100): Threshold(by_heads={}, otherwise=THRESHOLD)},
        tables={(12, 8, BACKEND, 1): TableRow(pure=((4096, 0),))},
    )


_DEPLOYMENT = Deployment(
    backend=BACKEND,
    device_family=100,
    local_heads=2,
    tensor_parallel=1,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    index_topk=TOPK,
    provider="attnoracle-triton",
    max_num_seqs=4,
    block_size=BLOCK,
    max_model_len=LONGEST,
)
_SIZES = RigSizes(kinds=("full", "shared"), blocks=64, max_tokens=LONGEST)

WHAT = {
    "fused": "the layer, whose fused kernel resets the top-k buffer before the skip test",
    "generic": "the layer that resets it after, so that a skip leaves what lay there",
    "packed": "the fused layer with an e4m3 cache and query, whose rotated dims are in the pack alone",
    "triton": "the fused layer in bf16 on the Triton kernels",
}


def setup(name: str, device: str = "cpu", version: str = "attnoracle") -> Setup:
    """A model by name. Raises BadInput for an unknown one."""
    if name not in WHAT:
        raise unknown("subject", name, WHAT)
    sizes, deployment = replace(_SIZES, device=device), _DEPLOYMENT
    if name == "generic":
        deployment = replace(deployment, wrapper="generic")
    if name == "packed":
        deployment = replace(deployment, cache="e4m3")
        sizes = replace(sizes, latent_dtype=torch.float8_e4m3fn, k_scale=2.0**-6, q_scale=2.0**-6)
    if name == "triton":
        bf16 = torch.bfloat16
        sizes = replace(sizes, dtype=bf16, latent_dtype=bf16, index_dtype=bf16)
    return Setup(
        name=name,
        what=WHAT[name],
        rules=tiny_rules(version),
        deployment=deployment,
        sizes=sizes,
        triton=name == "triton",
    )
