"""A small attention call in fp64, ready to be computed again and again with something changed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .observation import Observation

#: Scores of a call that is small enough.
MOST = 2**22


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One chunk: raw scores q.k [x,m,t], which are allowed, values [x,t,v], what was observed and is allowed there."""

    scores: Tensor
    allowed: Tensor
    values: Tensor
    out: Tensor
    out_budget: Tensor
    lse: Tensor | None
    lse_budget: Tensor

    def answer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """out [x,m,v] and lse [x,m] of final scores [x,m,t], -inf where a key is hidden."""
        lse = weights.logsumexp(-1)
        p = torch.exp(weights - torch.where(torch.isfinite(lse), lse, 0.0)[..., None])
        return p @ self.values, lse

    def misfit(self, out: Tensor, lse: Tensor, gain: Tensor | float = 1.0) -> float:
        """The energy of ``distance`` between an answer and what was observed."""
        energy = torch.log1p(((out * gain - self.out) / self.out_budget).clamp(-1e9, 1e9) ** 2).nan_to_num(40.0).mean()
        if self.lse is None:
            return float(energy)
        both = torch.isfinite(lse) & torch.isfinite(self.lse)
        apart = torch.where(both, (lse - self.lse) / self.lse_budget, torch.where(lse == self.lse, 0.0, 1e9))
        return float(energy + torch.log1p(apart.clamp(-1e9, 1e9) ** 2).mean())


def pieces(seen: Observation) -> list[Piece]:
    """The call in pieces; empty where it is too large or its answer has another shape."""
    from ..judge.attention_call import attention_chunks

    exact = seen.expected.exact
    if seen.answer.get("out") is None or seen.answer["out"].shape != exact["out"].shape:
        return []
    if exact["out"].shape[0] * exact["out"].shape[1] * max(seen.case.keys, seen.case.topk) > MOST:
        return []
    if "pieces" not in seen.cache:
        seen.cache["pieces"] = [_piece(seen, chunk) for chunk in attention_chunks(seen.operator, seen.arguments)]
    found: list[Piece] = seen.cache["pieces"]
    return found


def _piece(seen: Observation, chunk: object) -> Piece:
    from ...reference.chunks import Chunk

    assert isinstance(chunk, Chunk)

    def arranged(tensor: Tensor) -> Tensor:
        rows = tensor[chunk.rows]
        return rows.transpose(0, 1) if chunk.heads_first else rows

    answer, allowed = seen.answer, seen.expected.allowed
    lse = answer.get("lse")
    keys, values = (torch.nan_to_num(x, 0.0, 0.0, 0.0) for x in (chunk.keys, chunk.values))
    return Piece(
        scores=chunk.queries @ keys.mT,
        allowed=chunk.allowed.expand(*chunk.queries.shape[:2], keys.shape[1]),
        values=values,
        out=arranged(answer["out"]),
        out_budget=arranged(allowed["out"]).clamp_min(1e-300),
        lse=None if lse is None or lse.shape != allowed["lse"].shape else arranged(lse),
        lse_budget=arranged(allowed["lse"]).clamp_min(1e-300),
    )
