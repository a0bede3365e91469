"""Judges indexer scores: exact window mask, and a working-precision budget on every score.

    score[s,t] = k_scale[t] sum_i w[s,i] relu(q[s,i].k[t])
    |error| <= half_ulp(output) + a_e k_scale |k| sum_i |w_i| |q_i| + a_i k_scale sum_i |w_i| relu(q_i.k)

a_e bounds the accumulation of one product over e dims, a_i that over the heads (``budget.accumulated``). ReLU cannot
enlarge an error. bf16 and e4m3 products are exact in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...optimized.contract import Contract, Format
from ...reference.chunks import cut
from ..verdict import Worst
from .budget import accumulated
from .findings import Judgement, mask_mismatch, where
from .formats import format_of, half_ulp

#: Most products q.k held at once (fp64), as in ``reference.chunks``.
LIMIT = 2**24


def judge(
    observed: Tensor,
    contract: Contract,
    *,
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
) -> Judgement:
    """Compare scores [s,t] with the formula; shapes as ``reference.indexer_scores``."""
    result = Judgement()
    output = contract.output or format_of(observed.dtype)
    bad = torch.zeros(observed.shape, dtype=torch.bool, device=observed.device)
    strange = torch.zeros_like(bad)
    survivors: dict[str, bool] = {}
    keys = k.to(torch.float64) if k.dtype.itemsize > 1 else k.to(torch.float32).to(torch.float64)
    scale = k_scale.to(torch.float64)
    columns = torch.arange(k.shape[0], device=k.device)
    worst: Worst | None = None
    for rows in cut(slice(0, q.shape[0]), q.shape[1] * max(1, k.shape[0]), LIMIT):
        queries = q[rows].to(torch.float32).to(torch.float64)
        w = weights[rows].to(torch.float64)
        inside = (columns >= ks[rows, None]) & (columns < ke[rows, None])
        clean = torch.where(inside.any(0)[:, None], keys, 0.0)
        factor = torch.where(inside.any(0), scale, 0.0)
        expected, limit, products = _bounded(contract, output, queries, w, clean, factor)
        expected = torch.where(inside, expected, -torch.inf)
        seen = observed[rows].to(torch.float64)
        strange[rows] = mask_mismatch(seen, expected)
        finite = torch.isfinite(seen) & torch.isfinite(expected)
        error = torch.where(finite, (seen - expected).abs(), 0.0)
        bad[rows] = error > limit
        worst = _worse(worst, rows, error / limit, seen, expected, limit)
        _power(survivors, expected, limit, inside, products, w, factor)
    if bool(strange.any()):
        result.add(
            "structure",
            "NaN, infinity or a window edge where the reference has another value",
            where=where(strange, ("queries", "keys")),
        )
    if worst is not None:
        result.worst.append(worst)
        result.measures["element"] = worst.ratio
    if bool(bad.any()):
        assert worst is not None
        result.add(
            "element", f"a score is off by {worst.ratio:.3g} times its budget", where=where(bad, ("queries", "keys"))
        )
    result.survivors = tuple(sorted(name for name, died in survivors.items() if not died))
    return result


def _bounded(
    contract: Contract, output: Format, queries: Tensor, w: Tensor, keys: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [s,t], their budget, and the products after the ReLU [s,i,t], all fp64."""
    products = torch.einsum("sie,te->sit", queries, keys).clamp_min(0.0)
    expected = torch.einsum("si,sit->st", w, products) * factor
    sizes = torch.einsum("si,si->s", w.abs(), queries.norm(dim=-1))[:, None] * keys.norm(dim=-1)
    heads = torch.einsum("si,sit->st", w.abs(), products)
    limit = accumulated(queries.shape[2], contract.accumulator) * sizes + accumulated(queries.shape[1], "fp32") * heads
    limit = limit * factor.abs()
    return expected, limit + half_ulp(expected.abs() + limit, output), products


def expectation(
    contract: Contract, *, q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor
) -> tuple[Tensor, Tensor]:
    """Exact scores and their budget [s,t], fp64; all at once, for small cases."""
    columns = torch.arange(k.shape[0], device=k.device)
    inside = (columns >= ks[:, None]) & (columns < ke[:, None])
    seen = inside.any(0)
    queries, keys = (x.to(torch.float32).to(torch.float64) for x in (q, k))
    keys, factor = torch.where(seen[:, None], keys, 0.0), torch.where(seen, k_scale.to(torch.float64), 0.0)
    expected, limit, _ = _bounded(contract, contract.output or "fp32", queries, weights.double(), keys, factor)
    return torch.where(inside, expected, -torch.inf).cpu(), limit.cpu()


def _worse(
    worst: Worst | None, rows: slice, ratio: Tensor, seen: Tensor, expected: Tensor, limit: Tensor
) -> Worst | None:
    if not ratio.numel():
        return worst
    flat = int(ratio.argmax())
    if worst is not None and float(ratio.flatten()[flat]) <= worst.ratio:
        return worst
    row, column = divmod(flat, ratio.shape[1])
    return Worst("scores", (rows.start + row, column), *(float(t[row, column]) for t in (seen, expected, limit)))


def _power(
    died: dict[str, bool],
    expected: Tensor,
    limit: Tensor,
    inside: Tensor,
    products: Tensor,
    weights: Tensor,
    factor: Tensor,
) -> None:
    """Wrong scores that this input must tell from the right ones."""
    if not expected.numel():
        return
    right = torch.where(inside, expected, 0.0)
    wrong = {
        "zeros": torch.zeros_like(right),
        "unweighted heads": products.sum(1) * factor,
        "last head dropped": torch.einsum("si,sit->st", weights[:, :-1], products[:, :-1]) * factor,
        "previous query's scores": right.roll(1, 0),
        "previous key's scores": right.roll(1, 1),
        "key scales forgotten": torch.where(factor != 0, right / factor.masked_fill(factor == 0, 1.0), right),
    }
    for name, scores in wrong.items():
        apart = torch.where(inside, (scores - right).abs(), 0.0)
        if bool((apart > 1e-9 * right.abs().max()).any()):
            died[name] = died.get(name, False) or bool((apart > limit).any())
