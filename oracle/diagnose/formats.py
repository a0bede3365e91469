"""Hypotheses of number formats: any quantity of a kernel held in any format it was not declared in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.simulated.sites import rounded
from .expectation import ATTENTION
from .hypothesis import Hypothesis, Stage
from .observation import Observation

Round = Callable[[Tensor], Tensor]


def _to(dtype: torch.dtype) -> Round:
    limit = torch.finfo(dtype).max
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return lambda x: rounded(x.clamp(-limit, limit), dtype)
    return lambda x: rounded(x, dtype)


def _cut(bits: int) -> Round:
    """fp32 with its last mantissa bits cleared."""
    return lambda x: (x.contiguous().view(torch.int32) & -(1 << bits)).view(torch.float32)


FORMATS: dict[str, Round] = {
    "rounded to bf16": _to(torch.bfloat16),
    "cut to bf16": _cut(16),
    "rounded to fp16": _to(torch.float16),
    "rounded to e4m3": _to(torch.float8_e4m3fn),
    "rounded to e5m2": _to(torch.float8_e5m2),
    "cut to TF32": _cut(13),
}
Plan = Callable[[Round], dict[str, Any]]
_ATTENTION: tuple[tuple[str, Stage, Plan], ...] = (
    ("queries", "gather", lambda r: {"inputs": lambda q, k, v: (r(q.float()).to(q.dtype), k, v)}),
    ("q.k", "scores", lambda r: {"dot": lambda q, k: r(q @ k.transpose(-1, -2))}),
    ("scores", "scores", lambda r: {"score": lambda qk, scale: r(qk * scale)}),
    ("probabilities", "softmax", lambda r: {"probabilities": lambda p, dtype: r(p)}),
    ("the row sum", "softmax", lambda r: {"total": r}),
    ("products of tiles", "P.V", lambda r: {"product": lambda p, v: r(p @ v)}),
    ("the accumulator", "P.V", lambda r: {"acc": r}),
    ("partial results of 2 splits", "merge", lambda r: {"splits": 2, "partial": r}),
    ("partial results of 4 splits", "merge", lambda r: {"splits": 4, "partial": r}),
    ("the output", "output", lambda r: {"output": lambda out, dtype: r(out.contiguous()).to(dtype)}),
    ("the LSE", "lse", lambda r: {"lse": lambda lse, out: r(lse.contiguous())}),
)
_OTHERS: dict[str, tuple[tuple[str, Stage, Plan], ...]] = {
    "indexer_scores": (
        ("scores", "logits", lambda r: {"output": r}),
        ("the sum over heads", "logits", lambda r: {"total": r}),
        ("q.k of a head", "logits", lambda r: {"dot": lambda q, k: r(q @ k.T)}),
        ("head weights", "logits", lambda r: {"weight": lambda w, head: r(w[:, head].float())}),
        ("key scales", "logits", lambda r: {"dequantise": lambda total, s: total * r(s)}),
        ("queries and keys", "indexer q/k", lambda r: {"decode": lambda x: r(x.float())}),
    ),
    "topk_select": (("scores", "top-k", lambda r: {"scores": lambda scores: r(scores)}),),
    "merge_lse": (
        ("weights", "merge", lambda r: {"share": lambda lse, joint: r(_share(lse, joint))}),
        ("the output", "merge", lambda r: {"output": lambda out, dtype: r(out.contiguous()).to(dtype)}),
        ("the LSE", "lse", lambda r: {"lse": lambda joint, a, b: r(joint.contiguous())}),
    ),
}


def _share(lse: Tensor, joint: Tensor) -> Tensor:
    return torch.where(lse == -torch.inf, torch.zeros_like(lse), torch.exp(lse - joint))


def formats(seen: Observation) -> Iterator[Hypothesis]:
    """Every quantity in every format."""
    plans = _ATTENTION if seen.operator in ATTENTION else _OTHERS[seen.operator]
    for what, stage, plan in plans:
        for how, round_ in FORMATS.items():
            kernel = simulated(seen.operator, **plan(round_))
            verb = "are" if what.endswith("s") and not what.startswith("the") else "is"
            yield Hypothesis(
                f"format of {what}", stage, f"{what[0].upper()}{what[1:]} {verb} {how}.", kernel, 1, fixed=True
            )
