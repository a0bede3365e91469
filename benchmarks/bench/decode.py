"""Does decoding slow down where the indexer may skip short prompts? One layer with the skip, one without, in turn.

The skip is decided anew at every step from the metadata of the step, so that its price is host work; a decode never
skips. Both layers are whole (caches, indexer, top-k, sparse MQA) on the same inputs and kernels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...oracle.case import Case
from ...oracle.facts import facts
from ...oracle.geometry import Geometry
from ...oracle.layer.implementations import chosen, operators_of
from ...oracle.layer.rig import Rig, RigSizes
from ...oracle.policies import load_rules
from ...reference.layer import LayerInputs, StepBatch
from ...reference.routing import Batch, Deployment, Request, Rules
from .borrowed import BACKEND, RULES
from .timing import Timing

#: Tokens that every request has before it decodes: short, so that its prompt skipped the indexer.
CONTEXT = 256
BLOCK = 64


@dataclass(frozen=True, slots=True)
class Decoding:
    """So many requests, one token each a step: seconds of a step with the skip and without."""

    requests: int
    steps: int
    with_skip: Timing
    without: Timing

    @property
    def ratio(self) -> float:
        """With over without; 1 is no price."""
        return self.with_skip.median / self.without.median

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}


class _Decoder(Rig):
    """Inputs of a step drawn once: what is timed is the layer, not the drawing."""

    _drawn: LayerInputs | None = None

    def inputs(self, step: StepBatch, place: int, outputs: Sequence[Tensor] = ()) -> LayerInputs:
        if self._drawn is None or len(self._drawn.q) != sum(r.query_len for r in step.batch.requests):
            drawn = super().inputs(step, place, outputs)
            # Kernels take the indexer's weights in fp32, as engines hand them over.
            weights = None if drawn.index_weights is None else drawn.index_weights.float()
            self._drawn = replace(drawn, index_weights=weights)
        return self._drawn

    def timed(self, requests: Sequence[int]) -> float:
        """Seconds of one decode step, its metadata included, until the device is done."""
        _wait(self.sizes.device)
        started = time.perf_counter()
        self.clock += 1
        asked = tuple(Request(1, self.lengths[number], False) for number in requests)
        step = StepBatch(step=self.clock, ids=tuple(requests), batch=Batch(asked)).arranged(self.rules, self.deployment)
        for number, request in zip(step.ids, step.batch.requests, strict=True):
            self.pages.reserve(number, request.seq_len)
            self.lengths[number] = request.seq_len
        self.layers[0].forward(self.inputs(step, 0), self._metadata(step, "NONE", False))
        _wait(self.sizes.device)
        return time.perf_counter() - started


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(
    geometry: Geometry, tensor_parallel: int, requests: int, steps: int, *, device: str, context: int = CONTEXT
) -> Decoding:
    """Both layers, step by step in turn, each as often first. Raises Unsupported where the kernels do not run."""
    rules = load_rules(RULES)
    heads = geometry.heads // tensor_parallel
    rigs = [_rig(each, geometry, heads, tensor_parallel, requests, steps + context, device) for each in _both(rules)]
    for rig in rigs:
        rig.step([(number, context) for number in range(requests)])
    times: list[list[float]] = [[], []]
    for turn in range(steps):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(rigs[which].timed(range(requests)))
    return Decoding(requests, steps, Timing.of(times[0]), Timing.of(times[1]))


def _both(rules: Rules) -> tuple[Rules, Rules]:
    return rules, replace(rules, indexer_skip=False)


def _rig(
    rules: Rules, model: Geometry, heads: int, tensor_parallel: int, requests: int, longest: int, device: str
) -> _Decoder:
    deployment = Deployment(
        backend=BACKEND,
        device_family=90,
        local_heads=heads,
        tensor_parallel=tensor_parallel,
        kv_lora_rank=model.kv_lora_rank,
        qk_nope_head_dim=model.qk_nope_head_dim,
        qk_rope_head_dim=model.qk_rope_head_dim,
        v_head_dim=model.v_head_dim,
        index_topk=model.index_topk,
        provider="attnoracle-triton",
        max_num_seqs=requests,
        block_size=BLOCK,
        max_model_len=longest,
    )
    half = torch.bfloat16
    sizes = RigSizes(
        index_heads=model.index_n_heads or 1,
        index_dim=model.index_head_dim or 1,
        blocks=requests * (-(-longest // BLOCK) + 1),
        max_tokens=max(longest, requests * CONTEXT),
        dtype=half,
        latent_dtype=half,
        index_dtype=half,
        device=device,
    )
    case = Case(
        operator="sparse_mqa", geometry=model.name, heads=heads, q_lens=(1,), k_lens=(longest,), topk=model.index_topk
    )
    kernels = chosen("triton" if device.startswith("cuda") else "torch", facts(case, model, device))
    return _Decoder(rules, deployment, sizes, operators=operators_of(kernels))
