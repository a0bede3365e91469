"""Small attention chunks in float64, whose exact answers the judge is then told lies about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnoracle.optimized.contract import Contract
from attnoracle.oracle.judge import attention
from attnoracle.oracle.judge.findings import Judgement
from attnoracle.reference.chunks import Chunk
from attnoracle.reference.softmax import attend_all


@pytest.fixture(scope="session")
def normal() -> Callable[..., Tensor]:
    """fp64 normal values of a shape, from a seed, that bf16 holds exactly."""

    def draw(*shape: int, seed: int = 0) -> Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.bfloat16().double()

    return draw


class Problem:
    """One heads-first chunk: h heads, s queries, t keys; every query sees all keys unless told otherwise."""

    scale = 0.25

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None = None) -> None:
        h, s, t = queries.shape[0], queries.shape[1], keys.shape[1]
        seen = torch.ones(h, s, t, dtype=torch.bool) if allowed is None else allowed
        self.chunk = Chunk(slice(0, s), queries, keys, values, seen, True)
        self.out, self.lse = torch.zeros(s, h, values.shape[2]).double(), torch.zeros(s, h).double()
        attend_all([self.chunk], self.scale, self.out, self.lse)

    def judge(
        self, out: Tensor | None = None, lse: Tensor | None = None, *, power: bool = False, **contract: Any
    ) -> Judgement:
        """The judgement on an answer; what is not given is the exact one, in bf16 and fp32."""
        out = self.out.bfloat16() if out is None else out
        lse = self.lse.float() if lse is None else lse
        returned = None if contract.get("lse_base", "e") is None else lse
        declared = Contract(**({"probabilities": "bf16", "output": "bf16"} | contract))
        depth = self.chunk.queries.shape[-1]
        return attention.judge(
            lambda: [self.chunk] if len(out) else [],
            attention.Answer(out, returned, declared, depth),
            self.scale,
            None,
            power=power,
        )


@pytest.fixture
def problem(normal: Callable[..., Tensor]) -> Callable[..., Problem]:
    def make(h: int = 2, s: int = 12, t: int = 40, d: int = 16, v: int = 8, **changes: Tensor) -> Problem:
        tensors = {
            "queries": normal(h, s, d, seed=1),
            "keys": normal(h, t, d, seed=2),
            "values": normal(h, t, v, seed=3),
        }
        return Problem(**(tensors | changes))

    return make
