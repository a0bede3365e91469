"""Routes that theory says are equal, each run through a whole layer on real kernels and judged by the full verdict.

    every key is selected (length <= top-k)      dense MHA = sparse MQA
    a set of keys, none twice                    masked MHA = sparse MQA
    cached context in chunks, merged             = one shot
    keys spread over ranks, queries over ranks   = one rank
    a quantised cache that holds its values      = an unquantised one
    tokens decoded one by one                    = the same tokens as a prompt

A route is an implementation of ``masked_mha`` that ignores k, v and mask and runs the layer over the latents they were
made of (``agreement_inputs``). All are held to one reference, so two that pass agree within the sum of their budgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...optimized.implementation import Implementation
from ...reference.layer import OperatorCall, Parts, SparseMLALayer
from ...reference.routing import Deployment
from ..case import Case
from ..check import check
from ..inputs import Inputs
from ..inputs.tensors import DTYPES
from ..layer.contract import LayerUnderTest
from ..layer.implementations import operators_of
from ..layer.rig import Rig, RigSizes, StepResult
from ..replay.scene_rig import scaled_rules
from ..replay.steps_incident import Scaled
from ..verdict import Verdict
from .agreement_inputs import INDEX_DIM, UNIT, LatentBatch, drawn, latent_batch, quarter_turns

BLOCK = 4
#: How the sequences are cut into steps: in one, in two, with the last two tokens decoded one by one, or the first
#: request decoding its last token beside the prompts of the others.
Plan = Literal["whole", "cut", "decode", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreeingRoute:
    """One way to compute a batch."""

    name: str
    executes: frozenset[str]
    """Attention operators of the last step: these and no others."""
    plan: Plan = "whole"
    short: bool = False
    """For batches of which no sequence is longer than top-k; else for those with one that is."""
    deployment: Mapping[str, Any] = field(default_factory=dict)
    packed: bool = False
    """Queries in e4m3."""

    @property
    def merges(self) -> bool:
        """Whether partials are merged by their LSE."""
        return (self.plan == "cut" and "sparse_mqa" not in self.executes) or self.deployment.get("dcp", 1) > 1


_DENSE, _MASKED, _SPARSE = (frozenset({name}) for name in ("dense_mha", "masked_mha", "sparse_mqa"))
_FORCED = {"force_mqa": True}

ROUTES: tuple[AgreeingRoute, ...] = (
    AgreeingRoute(name="dense", executes=_DENSE, short=True),
    AgreeingRoute(name="dense-context", executes=_DENSE, short=True, plan="cut"),
    AgreeingRoute(name="dense-chunks", executes=_DENSE, short=True, plan="cut", deployment={"max_num_seqs": 1}),
    AgreeingRoute(name="dense-ds-mla", executes=_DENSE, short=True, plan="cut", deployment={"cache": "fp8_ds_mla"}),
    AgreeingRoute(name="dense-e4m3", executes=_DENSE, short=True, plan="cut", deployment={"cache": "e4m3"}),
    AgreeingRoute(name="dense-mixed", executes=_DENSE | _SPARSE, short=True, plan="mixed"),
    AgreeingRoute(
        name="dense-packed",
        executes=_DENSE | _SPARSE,
        short=True,
        plan="mixed",
        deployment={"cache": "e4m3"},
        packed=True,
    ),
    AgreeingRoute(name="sparse-short", executes=_SPARSE, short=True, deployment=_FORCED),
    AgreeingRoute(name="masked", executes=_MASKED),
    AgreeingRoute(name="masked-generic", executes=_MASKED, deployment={"wrapper": "generic"}),
    AgreeingRoute(name="masked-context", executes=_MASKED, plan="cut"),
    AgreeingRoute(name="masked-chunks", executes=_MASKED, plan="cut", deployment={"max_num_seqs": 1}),
    AgreeingRoute(name="masked-ds-mla", executes=_MASKED, plan="cut", deployment={"cache": "fp8_ds_mla"}),
    AgreeingRoute(name="masked-mixed", executes=_MASKED | _SPARSE, plan="mixed"),
    AgreeingRoute(name="sparse", executes=_SPARSE, deployment=_FORCED),
    AgreeingRoute(name="sparse-context", executes=_SPARSE, plan="cut", deployment=_FORCED),
    AgreeingRoute(name="sparse-decode", executes=_SPARSE, plan="decode", deployment=_FORCED),
    AgreeingRoute(name="sparse-pcp-2", executes=_SPARSE, deployment={**_FORCED, "pcp": 2}),
    AgreeingRoute(name="sparse-dcp-2", executes=_SPARSE, deployment={"dcp": 2}),
    AgreeingRoute(name="sparse-dcp-3", executes=_SPARSE, deployment={"dcp": 3, "cp_interleave": BLOCK}),
    AgreeingRoute(name="sparse-ds-mla", executes=_SPARSE, deployment={**_FORCED, "cache": "fp8_ds_mla"}),
    AgreeingRoute(name="sparse-packed", executes=_SPARSE, deployment={**_FORCED, "cache": "e4m3"}, packed=True),
)


def case_of(geometry: str, heads: int, lengths: Sequence[int], topk: int, seed: int = 0) -> Case:
    """A batch of whole prompts in bf16, as the case that its routes are judged on."""
    whole = tuple(lengths)
    return Case(operator="masked_mha", geometry=geometry, heads=heads, q_lens=whole, k_lens=whole, topk=topk, seed=seed)


def agree(
    case: Case,
    implementations: Sequence[Implementation],
    *,
    device: str = "cpu",
    make: Callable[[Parts], LayerUnderTest] = SparseMLALayer,
    routes: Sequence[AgreeingRoute] = ROUTES,
) -> Iterator[tuple[AgreeingRoute, Verdict]]:
    """The verdict of every route that is for this batch. ``make``: layers other than the right one."""
    short = max(case.k_lens) <= case.topk
    for route in routes:
        if route.short == short:
            run = _RouteRun(route, implementations, device, make)
            yield route, check(case, run.implementation(), device=device, draw=run.draw, redraw=run.draw, explain=False)


class _RouteRun:
    """One route as an implementation; ``draw`` lays down the batch that it runs on next."""

    def __init__(
        self,
        route: AgreeingRoute,
        implementations: Sequence[Implementation],
        device: str,
        make: Callable[[Parts], LayerUnderTest],
    ) -> None:
        self.route, self.device, self.make = route, device, make
        self.implementations = {one.operator: one for one in implementations}
        self.batch: LatentBatch | None = None

    def draw(self, case: Case, device: str) -> Inputs:
        if self.batch is None or self.batch.case != case:
            self.batch = latent_batch(case)
        return drawn(self.batch, device)

    def implementation(self) -> Implementation:
        contract = composed([one.contract for one in self.implementations.values()], merges=self.route.merges)
        return Implementation(f"masked_mha/{self.route.name}", contract, self.supports, lambda: self.run)

    def supports(self, known: Mapping[str, Any]) -> str | None:
        if self.route.merges and any(
            self.implementations[name].contract.lse_base is None for name in self.route.executes
        ):
            return "partials are merged by their LSE, and one of these kernels returns none"
        for operator in (*sorted(self.route.executes), *(["merge_lse"] if self.route.merges else [])):
            mine = {**known, "operator": operator}
            if operator == "sparse_mqa":
                cache = self.route.deployment.get("cache", "model")
                mine |= {"cache_format": "fp8_e4m3" if self.route.packed else cache if cache != "e4m3" else "model"}
                mine |= {"dtype": "e4m3"} if self.route.packed else {}
            reason = self.implementations[operator].supports(mine)
            if reason is not None:
                return f"{operator}: {reason}"
        return None

    def run(self, **_: Any) -> tuple[Tensor]:
        """out [s, h, v] of all tokens, request after request."""
        assert self.batch is not None
        rig = _AgreementRig(self.batch, self.route, self.implementations.values(), self.device, self.make)
        parts: list[list[Tensor]] = [[] for _ in self.batch.case.k_lens]
        for queries in steps(self.route.plan, self.batch.case.k_lens):
            decoding = all(count == 1 and number in rig.lengths for number, count in queries)
            result = rig.step(queries, decoding=decoding)
            if result.violations:
                raise AssertionError(str(result.violations[0]))
            for number, _count in queries:
                parts[number].append(result.output(number))
        self._as_planned(result)
        return (torch.cat([each for request in parts for each in request]).to(DTYPES[self.batch.case.dtype]),)

    def _as_planned(self, last: StepResult) -> None:
        ran = {e.operator for t in last.traces for e in t.events if isinstance(e, OperatorCall)}
        ran &= {"dense_mha", "masked_mha", "sparse_mqa"}
        if ran != self.route.executes:
            raise AssertionError(f"route {self.route.name}: expected {sorted(self.route.executes)}, ran {sorted(ran)}")


def steps(plan: Plan, lengths: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """(request, new tokens) of every step of a plan."""
    everyone = list(enumerate(lengths))
    if plan == "whole":
        yield everyone
    elif plan == "cut":
        first = [(number, -(-length // 2)) for number, length in everyone]
        yield first
        yield [(n, length - done) for (n, length), (_, done) in zip(everyone, first, strict=True) if length > done]
    elif plan == "decode":
        yield [(number, length - 2) for number, length in everyone]
        yield [(number, 1) for number, _ in everyone]
        yield [(number, 1) for number, _ in everyone]
    else:
        yield [(0, lengths[0] - 1)]
        yield [(0, 1), *everyone[1:]]


def composed(contracts: Sequence[Contract], *, merges: bool) -> Contract:
    """What a route of several kernels promises: the coarsest format and the largest error of any, and no LSE."""

    def coarsest(field_name: str) -> Any:
        return max((getattr(one, field_name) for one in contracts), key=lambda name: UNIT_ROUNDOFF[name or "bf16"])

    return Contract(
        scores=coarsest("scores"),
        probabilities=coarsest("probabilities"),
        accumulator=coarsest("accumulator"),
        partials="bf16" if merges or any(one.partials for one in contracts) else None,
        output="bf16",
        exp_error=max(one.exp_error for one in contracts),
        row_sum="rounded" if any(one.row_sum == "rounded" for one in contracts) else "unrounded",
        lse_base=None,
        deterministic=all(one.deterministic for one in contracts),
    )


class _AgreementRig(Rig):
    """One layer over the tokens of a batch."""

    def __init__(
        self,
        batch: LatentBatch,
        route: AgreeingRoute,
        implementations: Any,
        device: str,
        make: Callable[[Parts], LayerUnderTest],
    ) -> None:
        self.batch = batch
        case, dims = batch.case, batch.geometry
        deployment = Deployment(
            **{
                "backend": "FLASHMLA_SPARSE",
                "device_family": 100,
                "local_heads": case.heads,
                "tensor_parallel": 1,
                "kv_lora_rank": dims.kv_lora_rank,
                "qk_nope_head_dim": dims.qk_nope_head_dim,
                "qk_rope_head_dim": dims.qk_rope_head_dim,
                "v_head_dim": dims.v_head_dim,
                "index_topk": case.topk,
                "provider": "attnoracle-triton",
                "block_size": BLOCK,
                "max_model_len": 2 * max(case.k_lens),
                **route.deployment,
            }
        )
        quantised = deployment.cache == "e4m3"
        dtype = DTYPES[case.dtype]
        super().__init__(
            scaled_rules("attnoracle", Scaled(decode_threshold=1, masked_mha=True), deployment),
            deployment,
            RigSizes(
                index_heads=1,
                index_dim=INDEX_DIM,
                blocks=sum(-(-length // BLOCK) for length in case.k_lens),
                max_tokens=sum(case.k_lens),
                dtype=dtype,
                latent_dtype=torch.float8_e4m3fn if quantised else dtype,
                index_dtype=dtype,
                k_scale=UNIT if quantised else 1.0,
                q_scale=UNIT if route.packed else None,
                device=device,
            ),
            operators=operators_of(tuple(implementations)),
            make=make,
        )

    def parts(self, place: int, kind: Any, operators: Any) -> Parts:
        w_uk, w_uv = (w.to(self.sizes.dtype).to(self.sizes.device) for w in (self.batch.w_uk, self.batch.w_uv))
        scale = self.batch.geometry.softmax_scale
        return replace(super().parts(place, kind, operators), w_uk=w_uk, w_uv=w_uv, scale=scale)

    def sequence(self, request: int, place: int, start: int, stop: int) -> dict[str, Tensor]:
        rows = {name: x[start:stop] for name, x in self.batch.inputs[request].items()}
        return {name: x if name == "index_weights" else x.to(self.sizes.dtype) for name, x in rows.items()}

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return quarter_turns(x, positions)
