"""What a step's layers must give by the definition of sparse attention, whatever the route, the pages and the chunks.

A token attends to the k keys of its own past that the indexer scores highest, all of them where there are at most k; a
layer without an indexer takes the selection of the layer before it. Nothing of the layer's code is used: no cache, no
metadata, no merge, so that what all routes of a layer get wrong alike is seen as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF
from ...reference.layer import Parts, StepBatch
from ...reference.mla import up_project
from ...reference.routing import Deployment, Request
from .evidence import Violation, to_ranges
from .rig import Rig, StepResult

#: The small layers compute in fp64.
UNIT = UNIT_ROUNDOFF["fp64"]


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Of one layer in one step; rows are tokens of the arranged step."""

    out: Tensor
    """fp64 [s, h, v]."""
    bound: float
    """Largest error that the arithmetic of an output element explains."""
    decided: Tensor
    """bool [s]: the scores tell the last selected key from the first that is not; else either of them is right."""


def output_error(deployment: Deployment, keys: int, score: float, value: float, unit: float) -> float:
    """Most that an output element can be off, from the largest score, the largest value and the number of keys.

    A score is a sum of products of sums: 2 c + p + r terms on the way, each adding a unit roundoff of the sum of
    absolute products. P errs by twice that and by its n terms; the output by P's error and by n + 2 c terms more, all
    relative to the largest value. Twice, for what is of second order and for merges.
    """
    of_score = (2 * deployment.kv_lora_rank + deployment.qk_head_dim) * score
    return 2 * unit * value * (2 * of_score + 2 * (keys + deployment.kv_lora_rank))


def wrong_numbers(rig: Rig, result: StepResult) -> tuple[Violation, ...]:
    """Outputs of a step that are not what the definition gives; the rig's numbers are fp64 and its operators exact."""
    found = []
    for place, (given, wanted) in enumerate(zip(result.outputs, expected(rig, result.step), strict=True)):
        error = (given.cpu().double() - wanted.out).abs().flatten(1).amax(1).nan_to_num(torch.inf)
        rows = ((error > wanted.bound) & wanted.decided).nonzero().flatten()
        if len(rows):
            worst = float(error[rows].max()) / wanted.bound
            parties = (
                "a token attends to the keys that are selected for it",
                f"the output is off by {worst:.3g} times what the arithmetic explains",
            )
            found.append(Violation("differential", result.step.step, f"layers.{place}", to_ranges(rows), parties))
    return tuple(found)


def expected(rig: Rig, step: StepBatch) -> Iterator[Expected]:
    """One for each layer, in model order."""
    chosen: list[tuple[Tensor, Tensor]] = []
    spans = list(zip(step.ids, step.batch.requests, strict=True))
    for place, kind in enumerate(rig.sizes.kinds):
        whole = [rig.sequence(number, place, 0, request.seq_len) for number, request in spans]
        if kind != "shared":
            chosen = [_chosen(x, one, rig.deployment.index_topk) for x, (_, one) in zip(whole, spans, strict=True)]
        parts = rig.given[place]
        outs, bounds = zip(
            *(_attended(rig, parts, x, one, seen) for x, (_, one), (seen, _) in zip(whole, spans, chosen, strict=True)),
            strict=True,
        )
        yield Expected(torch.cat(outs), max(bounds), torch.cat([decided for _, decided in chosen]))


def _chosen(x: dict[str, Tensor], request: Request, topk: int) -> tuple[Tensor, Tensor]:
    """bool [q, t], the keys that each new token attends to; bool [q], whether they are the only right ones."""
    first = request.context_len
    q, weights, keys = x["index_q"][first:].double(), x["index_weights"][first:].double(), x["index_k"].double()
    products = torch.einsum("sie,te->sit", q, keys)
    scores = torch.einsum("si,sit->st", weights, products.relu())
    past = torch.arange(request.seq_len) <= torch.arange(first, request.seq_len)[:, None]
    if request.seq_len <= topk:
        return past, torch.ones(len(past), dtype=torch.bool)
    ranked = scores.masked_fill(~past, -torch.inf).sort(dim=1, descending=True, stable=True)
    seen = torch.zeros_like(past).scatter_(1, ranked.indices[:, :topk], True) & past
    terms = q.shape[1] + q.shape[2] + 2
    size = torch.einsum("si,si->s", weights.abs(), q.norm(dim=-1)) * keys.norm(dim=-1).max()
    gap = (ranked.values[:, topk - 1] - ranked.values[:, topk]).nan_to_num(0.0)
    return seen, (gap > 4 * terms * UNIT * size) | (past.sum(1) <= topk)


def _attended(rig: Rig, parts: Parts, x: dict[str, Tensor], request: Request, seen: Tensor) -> tuple[Tensor, float]:
    """Output [q, h, v] of the new tokens, and how far it may be off."""
    w_uk, w_uv = parts.w_uk.cpu().double(), parts.w_uv.cpu().double()
    q, kv_c = x["q"][request.context_len :].double(), x["kv_c"].double()
    positions, cut = torch.arange(request.seq_len), w_uk.shape[1]
    pe = rig.rotate(q[..., cut:], positions[request.context_len :])
    k, v = up_project(kv_c, rig.rotate(x["k_pe"].double(), positions), w_uk, w_uv)
    scores = parts.scale * torch.einsum("shd,thd->hst", torch.cat((q[..., :cut], pe), -1), k)
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    out = torch.einsum("hst,thv->shv", weights, v)
    latent, wide = float(kv_c.norm(dim=-1).max()), (1, 2)
    nope = float((q[..., :cut].norm(dim=-1) * w_uk.norm(dim=wide)).max()) * latent
    score = parts.scale * (nope + float(pe.norm(dim=-1).max()) * float(x["k_pe"].norm(dim=-1).max()))
    value = float(w_uv.norm(dim=2).max()) * latent
    return out, output_error(parts.deployment, request.seq_len, score, value, UNIT)
