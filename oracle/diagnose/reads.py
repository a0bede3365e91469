"""Which keys each query really read, and how often: solved for from what the kernel returned.

With p the softmax weights over every key there is and v their values, an answer with counts c (1 for a key that is read
once, 0 for one that is not) satisfies, for every head and value column,

    sum_j c_j p_j v_j = out exp(lse' - lse)        sum_j c_j p_j = exp(lse' - lse)

with lse' the observed and lse the exact log-sum-exp. Heads share the counts, so there are more equations than keys.
With the budget as the size of the rounding and a deviation of 1 for each count before anything was seen, the counts
come out with a posterior deviation, which says of which keys the answer tells anything. Keys of the own request are
tried first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .distance import ratios
from .expectation import cache_rows, plain_cache
from .model import MOST
from .observation import Observation

#: Deviations that a budget is wide, about: an element's error is far smaller than what it may be.
WIDE = 6.0
#: Largest posterior deviation of a count that is told.
CLEAR = 0.2
QUERIES_AT_ONCE = 32


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """Counts [s,t] over all keys (rows of the cache) of the batch."""

    counts: Tensor
    """As solved for, whole numbers."""
    due: Tensor
    """As they should be."""
    told: Tensor
    """bool: whether the equations tell the count."""
    scores: Tensor
    """[s,h,t] scaled."""
    values: Tensor
    """[h,t,v], or [1,t,c] for a cache."""

    def answer(self) -> tuple[Tensor, Tensor]:
        """out [s,h,v] and lse [s,h] of the counts, fp64, without a sink."""
        weights = self.scores + self.counts.clamp_min(0).log()[:, None]
        lse = weights.logsumexp(-1)
        p = torch.exp(weights - torch.where(torch.isfinite(lse), lse, 0.0)[..., None])
        return torch.einsum("sht,htv->shv", p, self.values.expand(p.shape[1], -1, -1)), lse


def solve(seen: Observation) -> Reads | None:
    """The counts; None for a call that is too large, or whose outputs do not allow it."""
    out, lse = seen.answer.get("out"), seen.answer.get("lse")
    exact = seen.expected.exact
    if out is None or lse is None or out.shape != exact["out"].shape or lse.shape != exact["lse"].shape:
        return None
    scores, values, due = _call(seen)
    if not scores.numel() or scores.numel() > MOST or scores.shape[2] > 1024:
        return None
    own = _own(seen, due)
    counts, told = due.clone(), torch.zeros_like(due, dtype=torch.bool)
    for first in range(0, len(due), QUERIES_AT_ONCE):
        rows = slice(first, first + QUERIES_AT_ONCE)
        counts[rows], told[rows] = _solve(seen, scores[rows], values, due[rows], rows, own[rows])
    near = Reads(counts, due, told, scores, values)
    if bool(own.all()) or _left(seen, near) < 0.5 * _left(seen, Reads(due, due, told, scores, values)):
        return near
    for first in range(0, len(due), QUERIES_AT_ONCE):
        rows = slice(first, first + QUERIES_AT_ONCE)
        counts[rows], told[rows] = _solve(seen, scores[rows], values, due[rows], rows, torch.ones_like(own[rows]))
    return Reads(counts, due, told, scores, values)


def _call(seen: Observation) -> tuple[Tensor, Tensor, Tensor]:
    """Scaled scores [s,h,t], values [h or 1,t,v], and how often each key is due [s,t]."""
    a, scale = seen.arguments, float(seen.arguments["scale"])
    q = a["q"].detach().cpu().double()
    if seen.operator == "sparse_mqa":
        indices, lengths = a["indices"].cpu().long(), a.get("lengths")
        n = cache_rows(a)
        counted = (indices >= 0) & (indices < n)
        if lengths is not None:
            counted &= torch.arange(indices.shape[1]) < lengths.cpu()[:, None]
        if n > 1024:  # a cache of far rows: only those in use
            return q.new_zeros(0, 0, 0), q, q
        due = torch.zeros(len(q), n, dtype=torch.float64)
        due.scatter_add_(1, torch.where(counted, indices, 0), counted.double())
        rows, q = _tame(plain_cache(a)), q * float(a.get("q_scale", 1.0))
        return torch.einsum("shd,td->sht", q, rows) * scale, rows[None, :, : a["value_dim"]], due
    k, v = (_tame(a[name].detach().cpu().double()) for name in ("k", "v"))
    return torch.einsum("shd,thd->sht", q, k) * scale, v.transpose(0, 1), _due(seen)


def _tame(rows: Tensor) -> Tensor:
    """Poisoned rows as zeros: a kernel that reads one shows it otherwise."""
    plain = torch.isfinite(rows) & (rows.abs() < 1e4)
    return torch.where(plain.flatten(1).all(1).view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)


def _due(seen: Observation) -> Tensor:
    """Keys that each query of a packed batch may see, [s,t]."""
    from ..judge.attention_call import attention_chunks

    a = seen.arguments
    cu_q, cu_k = a["cu_q"].cpu().long(), a["cu_k"].cpu().long()
    due = torch.zeros(a["q"].shape[0], a["k"].shape[0], dtype=torch.float64)
    for chunk in attention_chunks(seen.operator, a):
        if chunk.rows.stop == chunk.rows.start or not chunk.keys.shape[1]:
            continue
        request = int(torch.searchsorted(cu_q, chunk.rows.start, right=True)) - 1
        columns = slice(int(cu_k[request]), int(cu_k[request + 1]))
        due[chunk.rows, columns] = chunk.allowed[0].double().expand(chunk.rows.stop - chunk.rows.start, -1).cpu()
    return due


def _solve(
    seen: Observation, scores: Tensor, values: Tensor, due: Tensor, rows: slice, candidates: Tensor
) -> tuple[Tensor, Tensor]:
    exact, got = seen.expected.exact, seen.answer
    base = scores.masked_fill(~(due > 0)[:, None], -math.inf).logsumexp(-1)
    base = torch.where(torch.isfinite(base), base, scores.amax(-1))
    p = torch.exp((scores - base[..., None]).clamp_max(40.0))  # [s,h,t]
    seen_lse = torch.where(torch.isfinite(got["lse"][rows]), got["lse"][rows], -math.inf)
    total = torch.exp((seen_lse - base).clamp(-700.0, 40.0))
    out = torch.nan_to_num(got["out"][rows], 0.0, 0.0, 0.0)
    sink = seen.arguments.get("sink")
    if sink is not None:
        share = torch.sigmoid(exact["lse"][rows] - sink.cpu().double())[..., None]
        out = torch.where(share > 1e-3, out / share.clamp_min(1e-3), 0.0)
    wide = values.expand(p.shape[1], -1, -1)
    heads = slice(None) if sink is None else (seen.arguments["sink"].cpu() < math.inf).nonzero().flatten()
    p, total, out, wide = p[:, heads], total[:, heads], out[:, heads], wide[heads]
    p = p * candidates[:, None]
    missing = out * total[..., None] - torch.einsum("sht,htv->shv", p * due[:, None], wide)
    missing_total = total - (p * due[:, None]).sum(-1)
    allowed = seen.expected.allowed
    size = allowed["out"][rows][:, heads].square().mean(-1).sqrt() * total / WIDE
    precision = 1.0 / size.square().clamp_min(1e-30)
    exact_sum = 1.0 / (allowed["lse"][rows][:, heads] * total / WIDE + 1e-9).square()
    gram = torch.einsum("sht,shu,htu,sh->stu", p, p, wide @ wide.mT, precision)
    gram = gram + torch.einsum("sht,shu,sh->stu", p, p, exact_sum)
    right = torch.einsum("sht,htv,shv,sh->st", p, wide, missing, precision)
    right = right + torch.einsum("sht,sh,sh->st", p, missing_total, exact_sum)
    gram, right = (torch.nan_to_num(x, 0.0, 1e300, -1e300) for x in (gram, right))
    try:
        posterior = torch.linalg.inv(gram + torch.eye(gram.shape[-1], dtype=gram.dtype))
    except RuntimeError:  # LinAlgError: scores so far apart that fp64 does not hold the squares of their weights
        return due, torch.zeros_like(due, dtype=torch.bool)
    change = (posterior @ right[..., None])[..., 0]
    told = posterior.diagonal(dim1=-2, dim2=-1).sqrt() < CLEAR
    return (due + torch.where(told, change.round().clamp(-1e3, 1e3), 0.0)).clamp_min(0.0), told


def _own(seen: Observation, due: Tensor) -> Tensor:
    """Keys of a query's own request, bool [s,t]; of a cache, rows that somebody selected."""
    if seen.operator == "sparse_mqa":
        return (due > 0).any(0).expand(due.shape)
    queries, keys = torch.arange(due.shape[0]), torch.arange(due.shape[1])
    pairs = ((seen.arguments["cu_q"], queries), (seen.arguments["cu_k"], keys))
    of_q, of_k = (torch.searchsorted(cu.cpu().long(), x, right=True) for cu, x in pairs)
    return of_q[:, None] == of_k


def _left(seen: Observation, reads: Reads) -> float:
    """Energy that the counts leave of the LSE alone, which tells them best."""
    lse = reads.answer()[1]
    return float(torch.log1p(ratios(lse, seen.answer["lse"], seen.expected.allowed["lse"]) ** 2).mean())
