"""Judges indexer scores: exact window mask, and a working-precision budget on every score.

    score[s,t] = k_scale[t] sum_i w[s,i] relu(q[s,i].k[t])
    |error| <= half_ulp(output) + a_e k_scale |k| sum_i |w_i| |q_i| + a_i k_scale sum_i |w_i| relu(q_i.k)

a_e bounds the accumulation of one product over e dims, a_i that over the heads (``budget.accumulated``). ReLU cannot
enlarge an error. bf16 and e4m3 products are exact in fp32; the product of a weight and a query's scale rounds once,
which a_i has room for.

Packed keys are one block of the work, the keys of a request on its pages another: what is read is judged, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract, Format
from ...reference.chunks import cut
from ...reference.paged_indexer_scores import ends, keys_of
from ..verdict import Worst
from .budget import accumulated
from .findings import Judgement, mask_mismatch, where
from .formats import format_of, half_ulp

#: Most products q.k held at once (fp64), as in ``reference.chunks``.
LIMIT = 2**24


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of the answer that share their keys."""

    rows: slice
    q: Tensor
    """[x,i,e]"""
    k: Tensor
    """[t,e]"""
    k_scale: Tensor
    """[t]"""
    weights: Tensor
    """[x,i] as they are given."""
    q_scale: Tensor | None
    """[x,i]"""
    first: Tensor
    """int64 [x]: key of the answer's column 0."""
    low: Tensor
    """int64 [x]: first column of the window."""
    high: Tensor
    """int64 [x]: the column behind it."""


def packed(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
    q_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> Iterator[Block]:
    """The one block of ``indexer_scores``."""
    low, high = windows(ks=ks, ke=ke, max_seqlen_k=max_seqlen_k)
    first = torch.zeros_like(low) if max_seqlen_k is None else ks.long()
    yield Block(slice(0, len(q)), q, k, k_scale, weights, q_scale, first, low, high)


def paged(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    max_model_len: int,
    q_scale: Tensor | None = None,
) -> Iterator[Block]:
    """A block for every request of ``paged_indexer_scores``."""
    m = q.shape[1]
    for request, length in enumerate(context_lens.tolist()):
        k, k_scale = keys_of(k_cache, block_table[request], length, q.shape[-1])
        rows = slice(request * m, (request + 1) * m)
        high = ends(length, m, q.device)
        zero = torch.zeros_like(high)
        scale = None if q_scale is None else q_scale[rows]
        yield Block(rows, q[request], k, k_scale, weights[rows], scale, zero, zero, high)


def windows(
    *,
    ks: Tensor | None = None,
    ke: Tensor | None = None,
    max_seqlen_k: int | None = None,
    context_lens: Tensor | None = None,
    q: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """The columns [low, high) of every row that hold a score, int64 [s], from the arguments of either operator."""
    if ks is not None and ke is not None:
        start, stop = ks.long(), ke.long()
        return (start, stop) if max_seqlen_k is None else (torch.zeros_like(start), (stop - start).clamp_min(0))
    assert context_lens is not None and q is not None
    high = torch.cat([ends(length, q.shape[1], q.device) for length in context_lens.tolist()])
    return torch.zeros_like(high), high


def settled(scores: Tensor, contract: Contract, **arguments: Any) -> Tensor:
    """``scores`` with -inf outside the windows where the contract says nothing about them."""
    if contract.outside_window == "-inf":
        return scores
    low, high = windows(**arguments)
    columns = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill((columns < low[:, None]) | (columns >= high[:, None]), -torch.inf)


def judge(observed: Tensor, contract: Contract, blocks: Iterable[Block]) -> Judgement:
    """Compare scores with the formula."""
    result = Judgement()
    output = contract.output or format_of(observed.dtype)
    bad = torch.zeros(observed.shape, dtype=torch.bool, device=observed.device)
    strange = torch.zeros_like(bad)
    survivors: dict[str, bool] = {}
    columns = torch.arange(observed.shape[1], device=observed.device)
    worst: Worst | None = None
    for part in _parts(blocks, contract, output, columns):
        _power(survivors, *part.power)
        here, expected, limit = part.rows, part.expected, part.limit
        seen = observed[here].to(torch.float64)
        strange[here] = mask_mismatch(seen, expected)
        finite = torch.isfinite(seen) & torch.isfinite(expected)
        error = torch.where(finite, (seen - expected).abs(), 0.0)
        bad[here] = error > limit
        worst = _worse(worst, here, error / limit, seen, expected, limit)
    _conclude(result, worst, strange, bad)
    result.survivors = tuple(sorted(name for name, died in survivors.items() if not died))
    return result


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of the answer, fp64."""

    rows: slice
    expected: Tensor
    """[x,t] the exact scores, -inf outside the windows."""
    limit: Tensor
    """[x,t] their budget."""
    power: tuple[Any, ...]
    """What ``_power`` takes behind its first argument."""


def _parts(blocks: Iterable[Block], contract: Contract, output: Format, columns: Tensor) -> Iterator[_Part]:
    """Exact scores and budgets, rows by rows, over ``columns`` of the answer."""
    for block in blocks:
        keys, scale = _wide(block.k), block.k_scale.to(torch.float64)
        if not len(keys):  # a key that nobody sees, so that there is a column to look up
            keys, scale = keys.new_zeros(1, keys.shape[1]), scale.new_ones(1)
        key = torch.arange(len(keys), device=keys.device)
        for rows in cut(slice(0, len(block.q)), block.q.shape[1] * len(keys), LIMIT):
            queries, given = _wide(block.q[rows]), block.weights[rows].to(torch.float64)
            w = given if block.q_scale is None else given * block.q_scale[rows].to(torch.float64)
            first, low, high = (x[rows, None] for x in (block.first, block.low, block.high))
            inside = (key >= first + low) & (key < first + high)
            clean = torch.where(inside.any(0)[:, None], keys, 0.0)
            factor = torch.where(inside.any(0), scale, 0.0)
            products = torch.einsum("sie,te->sit", queries, clean).clamp_min(0.0)
            expected = torch.einsum("si,sit->st", w, products) * factor
            sizes = torch.einsum("si,si->s", w.abs(), queries.norm(dim=-1))[:, None] * clean.norm(dim=-1)
            heads = torch.einsum("si,sit->st", w.abs(), products)
            limit = accumulated(queries.shape[2], contract.accumulator) * sizes
            limit = (limit + accumulated(queries.shape[1], "fp32") * heads) * factor.abs()
            limit = limit + half_ulp(expected.abs() + limit, output)
            forgotten = None if block.q_scale is None else torch.einsum("si,sit->st", given, products) * factor
            power = (expected, limit, inside, products, w, factor, forgotten)
            at = (first + columns).clamp(0, len(keys) - 1)
            shown = (columns >= low) & (columns < high) & (first + columns < len(block.k))
            here = slice(block.rows.start + rows.start, block.rows.start + rows.stop)
            yield _Part(here, torch.where(shown, expected.gather(1, at), -torch.inf), limit.gather(1, at), power)


def expectation(contract: Contract, blocks: Iterable[Block], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Exact scores and their budget, fp64 [s,t], all at once: for small cases."""
    exact = torch.full(shape, -torch.inf, dtype=torch.float64)
    allowed = torch.ones(shape, dtype=torch.float64)
    made = list(blocks)
    columns = torch.arange(shape[1], device=made[0].q.device if made else None)
    for part in _parts(made, contract, contract.output or "fp32", columns):
        exact[part.rows], allowed[part.rows] = part.expected.cpu(), part.limit.cpu()
    return exact, allowed


def _wide(values: Tensor) -> Tensor:
    """fp64; by way of fp32, since 8-bit floats have no direct conversion everywhere."""
    return values.to(torch.float32).to(torch.float64) if values.dtype.itemsize == 1 else values.to(torch.float64)


def _conclude(result: Judgement, worst: Worst | None, strange: Tensor, bad: Tensor) -> None:
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
    forgotten: Tensor | None,
) -> None:
    """Wrong scores that this input must tell from the right ones; ``forgotten``: those without the query scales."""
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
    if forgotten is not None:
        wrong["query scales forgotten"] = forgotten
    for name, scores in wrong.items():
        apart = torch.where(inside, (scores - right).abs(), 0.0)
        if bool((apart > 1e-9 * right.abs().max()).any()):
            died[name] = died.get(name, False) or bool((apart > limit).any())
