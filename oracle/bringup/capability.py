"""Dense-MHA prefill: what a layer declares against what it does when it is offered a batch for it.

The lesson of vllm#52512: a layer that declares the capability makes the metadata choose dense MHA and the indexer skip;
if it runs sparse MQA all the same, it reads a selection that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ...reference.layer import OperatorCall, Parts
from ...reference.routing import Deployment, Rules, Threshold
from ...reference.stages import Model
from ..layer.contract import LayerUnderTest
from ..layer.rig import Rig, RigSizes
from ..policies import load_rules

_BACKEND, _FAMILY, _THRESHOLD, _TOPK = "FLASHMLA_SPARSE", 100, 2, 16
_ATTENTION = ("dense_mha", "masked_mha", "sparse_mqa")


@dataclass(frozen=True, slots=True)
class Probe:
    """``ran``: attention operators of a fresh prompt that dense MHA may take; ``violations`` of the layer contract."""

    declared: bool
    tokens: int
    ran: tuple[str, ...]
    violations: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        wanted = ("dense_mha",) if self.declared else ("sparse_mqa",)
        return self.ran == wanted and not self.violations

    def __str__(self) -> str:
        said = "dense MHA for short prefills" if self.declared else "no dense MHA"
        told = "".join(f"\n  {each}" for each in self.violations)
        return f"declared {said}; {self.tokens} fresh tokens ran {', '.join(self.ran) or 'no attention'}{told}"


def _rules() -> Rules:
    """Rules whose layers carry the flag and whose fused layer has an MHA branch, with a small decode threshold."""
    entry = Threshold(by_heads={}, otherwise=_THRESHOLD)
    return replace(load_rules("vllm-0.33"), thresholds={(_BACKEND, _FAMILY): entry})


def probe(m: Model, make: Callable[[Parts], LayerUnderTest], *, declared: bool, tokens: int = 12) -> Probe:
    """Offer a fresh prompt beyond the decode threshold and within the top-k to a layer of small dims."""
    deployment = Deployment(
        backend=_BACKEND,
        device_family=_FAMILY,
        local_heads=2,
        tensor_parallel=1,
        kv_lora_rank=16,
        qk_nope_head_dim=m.nope,
        qk_rope_head_dim=m.rope,
        v_head_dim=m.v,
        index_topk=_TOPK,
        layer_supports_dense=declared,
        max_num_seqs=1,
        block_size=4,
        max_model_len=64,
    )
    rig = Rig(_rules(), deployment, RigSizes(dtype=torch.float64), make=make)
    result = rig.step([(1, tokens)])
    calls = [event.operator for event in result.traces[0].events if isinstance(event, OperatorCall)]
    ran = tuple(dict.fromkeys(name for name in calls if name in _ATTENTION))
    return Probe(declared, tokens, ran, tuple(map(str, result.violations)))
