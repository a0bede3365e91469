"""Judges dense MHA, masked MHA and sparse MQA: streams the reference's chunks and holds every element to its budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from scipy import stats
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...reference.chunks import Chunk
from ..verdict import Worst
from .bounds import FALSE_ALARM, SHARES, SUSPICION, deviations, exponent
from .budget import Budget, budget
from .findings import Judgement, mask_mismatch, where
from .formats import format_of, rounded
from .moments import Moments, moments
from .power import Mutant, mutants
from .tally import Squares, Sums, add, column_sums, pooled, row_sums, squares

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an implementation returned, and what its numbers are held to."""

    out: Tensor
    """[s,h,v]"""
    lse: Tensor | None
    """[s,h], in the contract's base."""
    contract: Contract
    """With the format of P spelled out."""
    depth: int
    """Products in one score."""
    multiplicity: float = 1.0
    """How often one row names the same key at most."""
    coordinates: tuple[str, str, str] = ("queries", "heads", "columns")


@dataclass(slots=True)
class _State:
    """Everything that is gathered over the chunks."""

    z: float
    x: float
    elements: int
    rows: int
    worst: Worst | None = None
    worst_lse: Worst | None = None
    worst_deviation: float = 0.0
    certain: bool = False
    row_ratio: float = 0.0
    row_exponent: float = 0.0
    row_place: tuple[int, int] = (0, 0)
    query_ratio: float = 0.0
    query_exponent: float = 0.0
    heads: Sums | None = None
    columns: Sums | None = None
    total: Sums | None = None
    bad: Tensor | None = None
    bad_lse: Tensor | None = None
    strange: Tensor | None = None
    signed: list[Tensor] = field(default_factory=list)
    sizes: list[Tensor] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    mutants: dict[str, bool] = field(default_factory=dict)


def judge(
    chunks: Callable[[], Iterable[Chunk]], answer: Answer, scale: float, sink: Tensor | None, *, power: bool = True
) -> Judgement:
    """Compare an answer with the reference, chunk by chunk."""
    s, h, v = answer.out.shape
    elements = s * h * v
    state = _State(
        z=deviations(elements, FALSE_ALARM / SHARES),
        x=exponent(s * h, FALSE_ALARM / SHARES),
        elements=elements,
        rows=s * h,
    )
    state.bad = torch.zeros(answer.out.shape, dtype=torch.bool, device=answer.out.device)
    state.bad_lse = torch.zeros((s, h), dtype=torch.bool, device=answer.out.device)
    state.strange = torch.zeros_like(state.bad)
    for chunk in chunks():
        _chunk(state, chunk, answer, scale, sink, power)
    return _judgement(state, answer)


def _chunk(state: _State, chunk: Chunk, answer: Answer, scale: float, sink: Tensor | None, power: bool) -> None:
    contract = answer.contract
    output = contract.output or format_of(answer.out.dtype)
    m = moments(chunk, scale, _cell(contract), sink)
    b = budget(m, contract, output, answer.depth, state.z, answer.multiplicity)
    observed = _arranged(answer.out[chunk.rows], chunk).to(torch.float64)
    expected = _empties(m.out, m.empty, contract.empty_out)
    if expected is not m.out and contract.empty_out == "undefined":
        observed = torch.where(m.empty[..., None], m.out, observed)
        expected = m.out
    strange = mask_mismatch(observed, expected)
    assert state.strange is not None and state.bad is not None
    state.strange[chunk.rows] |= chunk.place(strange)
    error = torch.where(torch.isfinite(observed) & torch.isfinite(expected), observed - expected, 0.0)
    allowed = torch.minimum(b.half + state.z * b.variance.sqrt() + b.working, b.certain)
    over = error.abs() > allowed
    state.bad[chunk.rows] |= chunk.place(over)
    _elements(state, chunk, error, observed, expected, b, allowed)
    sq = squares(error, m, b, output, effective_columns(chunk.values))
    _groups(state, chunk, sq, b)
    _signs(state, error, m, b, output, contract)
    if answer.lse is not None and contract.lse_base is not None:
        _lse(state, chunk, answer, m, b)
    if power:
        for mutant in mutants(m, chunk, lse=answer.lse is not None):
            if not state.mutants.get(mutant.name, False):
                state.mutants[mutant.name] = _dies(mutant, m, b, allowed, output, chunk, state)


def _cell(contract: Contract) -> float:
    assert contract.probabilities is not None
    return UNIT_ROUNDOFF[contract.probabilities]


def _arranged(rows: Tensor, chunk: Chunk) -> Tensor:
    """Query-major rows [tokens,h,...] in the chunk's own order [x,m,...]."""
    return rows.transpose(0, 1) if chunk.heads_first else rows


def _empties(out: Tensor, empty: Tensor, convention: str) -> Tensor:
    if convention == "zero":
        return out
    return torch.where(empty[..., None], math.nan, out)


def _place(chunk: Chunk, flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), shape)]
    if chunk.heads_first:
        index[0], index[1] = index[1], index[0]
    index[0] += chunk.rows.start
    return tuple(index)


def _elements(
    state: _State, chunk: Chunk, error: Tensor, observed: Tensor, expected: Tensor, b: Budget, allowed: Tensor
) -> None:
    ratio = error.abs() / allowed.clamp_min(1e-300)
    flat = int(ratio.argmax())
    if ratio.numel() and (state.worst is None or float(ratio.flatten()[flat]) > state.worst.ratio):
        place = _place(chunk, flat, tuple(ratio.shape))
        values = (float(t.flatten()[flat]) for t in (observed, expected, allowed))
        state.worst = Worst("out", place, *values)
    excess = (error.abs() - b.half - b.working).clamp_min(0.0) / b.variance.sqrt().clamp_min(1e-300)
    state.worst_deviation = max(state.worst_deviation, float(excess.max()))
    state.certain |= bool((error.abs() > b.certain).any())


def _groups(state: _State, chunk: Chunk, sq: Squares, b: Budget) -> None:
    rows = row_sums(sq)
    ratio = rows.ratio(state.x)
    flat = int(ratio.argmax())
    if float(ratio.flatten()[flat]) > state.row_ratio:
        state.row_ratio = float(ratio.flatten()[flat])
        place = _place(chunk, flat, tuple(ratio.shape))
        state.row_place = (place[0], place[1])
    state.row_exponent = max(state.row_exponent, float(rows.exponent().max()))
    head_axis, query_axis = (1, 0) if chunk.heads_first else (0, 1)
    queries = pooled(rows, sq.coherent, (0,) if chunk.heads_first else (1,))
    state.query_ratio = max(state.query_ratio, float(queries.ratio(state.x).max()))
    state.query_exponent = max(state.query_exponent, float(queries.exponent().max()))
    state.heads = add(state.heads, pooled(rows, sq.coherent, (head_axis,)))
    state.columns = add(state.columns, column_sums(sq, b))
    state.total = add(state.total, pooled(rows, sq.coherent, (head_axis, query_axis)))


def _signs(state: _State, error: Tensor, m: Moments, b: Budget, output: str, contract: Contract) -> None:
    sign = m.out.sign()
    size = m.out.abs()
    state.signed.append((sign * error).sum(-1).flatten())
    state.sizes.append(size.sum(-1).flatten())
    known = sign * (rounded(m.out, output) - m.out)
    state.floors.append(float(known.sum()))
    # What one row's keys share cannot be told from a bias, nor can the errors of working precision.
    shared = _cell(contract) * m.coherence.sqrt()[..., None] * size
    state.drifts.append(float((shared + b.working).sum()))


def _lse(state: _State, chunk: Chunk, answer: Answer, m: Moments, b: Budget) -> None:
    assert answer.lse is not None and state.bad_lse is not None
    contract = answer.contract
    observed = _arranged(answer.lse[chunk.rows], chunk).to(torch.float64)
    if contract.lse_base == "2":
        observed = observed * LN2
    empty = {"-inf": -math.inf, "+inf": math.inf, "nan": math.nan}.get(contract.empty_lse)
    expected = m.lse if empty is None else torch.where(m.empty, empty, m.lse)
    if empty is None:
        observed = torch.where(m.empty, expected, observed)
    strange = mask_mismatch(observed, expected)
    error = torch.where(torch.isfinite(observed) & torch.isfinite(expected), (observed - expected).abs(), 0.0)
    state.bad_lse[chunk.rows] |= chunk.place((error > b.lse) | strange)
    ratio = torch.where(strange, math.inf, error / b.lse)
    flat = int(ratio.argmax())
    value = float(ratio.flatten()[flat])
    if state.worst_lse is None or value > state.worst_lse.ratio:
        numbers = (float(t.flatten()[flat]) for t in (observed, expected, b.lse))
        state.worst_lse = Worst("lse", _place(chunk, flat, tuple(ratio.shape)), *numbers)


def _dies(mutant: Mutant, m: Moments, b: Budget, allowed: Tensor, output: str, chunk: Chunk, state: _State) -> bool:
    """Whether the checks on one element, one row or its LSE would reject this wrong answer."""
    if mutant.lse is not None and bool((((mutant.lse - m.lse).abs() > b.lse) & torch.isfinite(m.lse)).any()):
        return True
    if mutant.out is None:
        return False
    error = mutant.out - m.out
    if bool((error.abs() > allowed).any()):
        return True
    rows = row_sums(squares(error, m, b, output, effective_columns(chunk.values)))
    return bool((rows.ratio(state.x) > 1.0).any())


def effective_columns(values: Tensor) -> float:
    """Participation ratio of V's second moments: how many value columns err independently. values [x,t,v]."""
    sample = torch.nan_to_num(values[:: max(1, values.shape[0] // 4)][:4, :: max(1, values.shape[1] // 512)])
    gram = sample.transpose(-1, -2) @ sample
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    frobenius2 = (gram * gram).sum((-1, -2))
    ratio = torch.where(frobenius2 > 0, trace * trace / frobenius2.clamp_min(1e-300), 1.0)
    return float(ratio.min()) if ratio.numel() else 1.0


def _judgement(state: _State, answer: Answer) -> Judgement:
    result = Judgement()
    fail, suspect = FALSE_ALARM / SHARES, SUSPICION / SHARES
    assert state.bad is not None and state.bad_lse is not None and state.strange is not None
    if bool(state.strange.any()):
        place = where(state.strange, answer.coordinates)
        result.add("structure", "NaN or infinity where the reference has another value", where=place)
    if state.worst is not None:
        result.worst.append(state.worst)
        result.measures["element"] = state.worst.ratio
        p = min(1.0, 2.0 * state.elements * math.exp(-(min(state.worst_deviation, 37.0) ** 2) / 2.0))
        message = f"an element is off by {state.worst.ratio:.3g} times its budget"
        if state.certain:
            result.add("element", message, where=where(state.bad, answer.coordinates))
        else:
            result.statistical("element", message, p, fail, suspect, where(state.bad, answer.coordinates))
    _squares(result, state, fail, suspect)
    _bias(result, state, fail, suspect)
    if state.worst_lse is not None:
        result.worst.append(state.worst_lse)
        result.measures["lse"] = state.worst_lse.ratio
        if bool(state.bad_lse.any()):
            message = f"an LSE is off by {state.worst_lse.ratio:.3g} times its budget"
            result.add("lse", message, where=where(state.bad_lse, answer.coordinates[:2]))
    result.survivors = tuple(sorted(name for name, died in state.mutants.items() if not died))
    return result


def _squares(result: Judgement, state: _State, fail: float, suspect: float) -> None:
    if state.heads is None or state.columns is None or state.total is None:
        return
    result.measures["row"] = state.row_ratio
    heads, columns, total = state.heads, state.columns, state.total
    measured = [
        ("row", state.row_ratio, state.row_exponent, state.rows, f"row {state.row_place}"),
        ("query", state.query_ratio, state.query_exponent, state.rows, "all heads of one query"),
        ("head", _top(heads.ratio(state.x)), _top(heads.exponent()), heads.trace.numel(), _which(heads, "head")),
        (
            "column",
            _top(columns.ratio(state.x)),
            _top(columns.exponent()),
            columns.trace.numel(),
            _which(columns, "column"),
        ),
        ("global", float(total.ratio(state.x)), float(total.exponent()), 1, "all elements"),
    ]
    for check, ratio, top, count, place in measured:
        result.measures[check] = ratio
        p = math.nan if math.isnan(top) else min(1.0, count * math.exp(-min(top, 700.0)))
        message = f"squared errors of {place} are {ratio:.3g} times what rounding explains"
        result.statistical(check, message, p, fail, suspect)
    result.measures["mean_square"] = float(total.observed / total.trace.clamp_min(1e-300))


def _top(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _which(sums: Sums, name: str) -> str:
    return f"{name} {int(sums.exponent().argmax())}" if sums.trace.numel() else name


def _bias(result: Judgement, state: _State, fail: float, suspect: float) -> None:
    """A mean error toward or away from zero that neither noise nor a shared rounding explains."""
    if not state.signed:
        return
    signed, sizes = torch.cat(state.signed), torch.cat(state.sizes)
    used = sizes > 0
    signed, sizes = signed[used], sizes[used]
    rows = signed.numel()
    if rows < 8:
        return  # no estimate of the spread between rows
    total = float(sizes.sum())
    mean = float(signed.sum()) / total
    error = float(((signed - mean * sizes) ** 2).sum() * rows / (rows - 1)) ** 0.5 / total
    floor = (abs(sum(state.floors)) + sum(state.drifts)) / total
    result.measures["bias"] = mean
    result.measures["bias_floor"] = floor
    if error == 0.0:
        return
    p = float(2.0 * stats.t.sf(max(0.0, abs(mean) - floor) / error, rows - 1))
    way = "larger" if mean > 0 else "smaller"
    message = f"outputs are {way} than exact by {abs(mean):.2e} of their size on average"
    result.statistical("bias", message, p, fail, suspect)
