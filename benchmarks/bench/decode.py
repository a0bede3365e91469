"""Whether decoding pays for the skip: a layer whose indexer may skip short prompts, and one whose may not.

A step of all requests is one CUDA graph, as an engine decodes: metadata on the device, replayed once a token. A full
graph never skips, so that both layers should capture the same operations; that is compared, and the steps are timed in
turn, in the device's time, as is everything here. What remains is the host's part of a step, where the skip is decided
anew: it is timed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from ...optimized.implementation import Implementation
from ...oracle.case import Case
from ...oracle.check import check
from ...oracle.errors import BadInput, Unsupported
from ...oracle.facts import facts
from ...oracle.geometry import Geometry
from ...oracle.graphs.setup import setup
from ...oracle.layer.implementations import chosen, operators_of
from ...oracle.layer.rig import RigSizes
from ...oracle.policies import load_rules
from ...reference.layer import Operators
from ...reference.routing import Deployment, Rules
from .borrowed import BACKEND, RULES
from .clock import HostClock
from .decoder import Decoder
from .timing import Timing, clock_for, rounds

#: Tokens that every request has before it decodes: short, so that its prompt skipped the indexer.
CONTEXT = 256
BLOCK = 64
#: Steps whose host part is timed.
_HOST_STEPS = 200
_CAPTURED = ("indexer_scores", "topk_select", "sparse_mqa")


@dataclass(frozen=True, slots=True)
class Decoding:
    """So many requests, one token each a step: seconds of a step with the skip and without."""

    requests: int
    steps: int
    with_skip: Timing
    without: Timing
    host_with_skip: float = 0.0
    """Median seconds of the host's part of a step: batch, route, skip, metadata."""
    host_without: float = 0.0
    operations: int = 0
    """In the graph of the layer that may skip."""
    same_operations: bool = True
    """Whether the other layer captured the same ones."""

    @property
    def ratio(self) -> float:
        """With over without; 1 is no price."""
        return self.with_skip.median / self.without.median

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio}


def measure(
    model: Geometry, tensor_parallel: int, requests: Sequence[int], steps: int, *, device: str, context: int = CONTEXT
) -> list[Decoding]:
    """Both layers at every number of requests, all of them step by step in turn.

    On a GPU the captured kernels are checked first on the very shapes (BadInput where one is wrong). Raises Unsupported
    where they do not run, and for a model whose indexer is not known.
    """
    if not model.index_n_heads or not model.index_head_dim:
        raise Unsupported(f"{model.name}: its indexer is not known, so no decode step can be timed")
    heads, longest = model.heads // tensor_parallel, context + steps
    operators = _operators(model, heads, requests, longest, device)
    rules = load_rules(RULES)
    make = partial(
        decoder, model=model, heads=heads, context=context, longest=longest, device=device, operators=operators
    )
    pairs = [[make(each, requests=n) for each in (rules, replace(rules, indexer_skip=False))] for n in requests]
    every = [one for pair in pairs for one in pair]
    times = timed(every, steps, device)
    hosts = [one.median for one in rounds(HostClock([one.decide for one in every]), min(steps, _HOST_STEPS))]
    found = []
    for place, (count, pair) in enumerate(zip(requests, pairs, strict=True)):
        may, not_ = 2 * place, 2 * place + 1
        held, other = (operations(one) for one in pair)
        one = Decoding(count, steps, times[may], times[not_], hosts[may], hosts[not_], len(held), held == other)
        found.append(one)
    return found


def _operators(model: Geometry, heads: int, requests: Sequence[int], longest: int, device: str) -> Operators:
    """Those of the layer: kernels on a GPU, checked; on a CPU, whose figures say nothing, the references."""
    if not device.startswith("cuda"):
        return setup("fused", device).operators()
    kernels = chosen("triton", facts(case("sparse_mqa", model, heads, 1, longest), model, device))
    for count in requests:
        for one in kernels:
            if one.operator in _CAPTURED:
                verify(case(one.operator, model, heads, count, longest), one, device)
    return operators_of(kernels)


def verify(case: Case, one: Implementation, device: str) -> None:
    """Raises BadInput unless the kernel passes its check: a wrong one is not timed."""
    verdict = check(case, one, device=device)
    if verdict.status != "PASS":
        raise BadInput(f"{one.name} does not pass {case.id}: {verdict.status} {verdict.reason}; it is not timed")


def timed(decoders: Sequence[Decoder], steps: int, device: str) -> list[Timing]:
    """``steps`` replays of each, in turn. Raises RuntimeError where the device is not where the host is by then."""
    timer = clock_for([one.graph.launch for one in decoders], torch.device(device))
    for one in decoders:
        one.rewind()
    timings = rounds(timer, steps)
    for one in decoders:
        behind = one.behind(steps)
        if behind:
            raise RuntimeError(f"decode: after {steps} replays the device is not where the host is: {behind}")
    return timings


def operations(one: Decoder) -> list[str]:
    """What its graph holds, in order."""
    return [op.name for op in one.graph.ops]


def case(operator: str, model: Geometry, heads: int, requests: int, longest: int) -> Case:
    """One operator of a step, with as many keys as the last step has."""
    return Case(
        operator=operator,
        geometry=model.name,
        heads={"topk_select": 1, "indexer_scores": model.index_n_heads or 1}.get(operator, heads),
        q_lens=(1,) * requests,
        k_lens=(longest,) * requests,
        topk=0 if operator == "indexer_scores" else model.index_topk,
    )


def decoder(
    rules: Rules, *, model: Geometry, heads: int, requests: int, context: int, longest: int, device: str,
    operators: Operators, make: type[Decoder] = Decoder,
) -> Decoder:  # fmt: skip
    """One layer of a model on one rank, with ``requests`` decodes from ``context`` tokens to ``longest``."""
    deployment = Deployment(
        backend=BACKEND,
        device_family=90,
        local_heads=heads,
        tensor_parallel=model.heads // heads,
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
        blocks=requests * -(-longest // BLOCK),
        max_tokens=requests,
        dtype=half,
        latent_dtype=half,
        index_dtype=half,
        device=device,
    )
    return make(
        rules, deployment, sizes, operators, requests=requests, context=context, longest=-(-longest // BLOCK) * BLOCK
    )
