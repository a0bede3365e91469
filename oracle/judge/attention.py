"""Judges dense MHA, masked MHA and sparse MQA: streams the reference's chunks and holds every element to its budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract, Format
from ...reference.chunks import Chunk
from .bounds import FALSE_ALARM, SHARES, SUSPICION, deviations, exponent
from .budget import Budget, budget
from .calibration import eager_error
from .conclusion import conclude
from .findings import Judgement, mask_mismatch
from .formats import SMALLEST_SUBNORMAL, format_of, rounded
from .moments import Moments, moments
from .power import Mutant, mutants
from .state import State
from .tally import Squares, add, column_sums, row_sums, squares
from .units import LN2

#: Largest LSE, in the contract's base, that counts as a finite stand-in for -inf.
SENTINEL = -4e4
#: What a contract may promise for the LSE of a query without keys, other than a sentinel.
EMPTY_LSE = {"-inf": -math.inf, "+inf": math.inf, "nan": math.nan, "zero": 0.0}


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

    @property
    def output(self) -> Format:
        """Format of the output."""
        return self.contract.output or format_of(self.out.dtype)

    @property
    def cell(self) -> float:
        """Unit roundoff of P."""
        assert self.contract.probabilities is not None
        return UNIT_ROUNDOFF[self.contract.probabilities]


def judge(
    chunks: Callable[[], Iterable[Chunk]], answer: Answer, scale: float, sink: Tensor | None, *, power: bool = True
) -> Judgement:
    """Compare an answer with the reference, chunk by chunk; ``power``: try wrong answers on this input as well."""
    s, h, v = answer.out.shape
    state = State.of(
        (s, h, v),
        answer.out.device,
        z=deviations(s * h * v, FALSE_ALARM / SHARES),
        z_suspect=deviations(s * h * v, SUSPICION / SHARES),
        x=exponent(s * h, FALSE_ALARM / SHARES),
    )
    for chunk in chunks():
        _chunk(state, chunk, answer, scale, sink, power)
    return conclude(state)


def _chunk(state: State, chunk: Chunk, answer: Answer, scale: float, sink: Tensor | None, power: bool) -> None:
    m = moments(
        chunk,
        scale,
        answer.cell,
        sink,
        underflow=answer.contract.probabilities in SMALLEST_SUBNORMAL,
        dequantised=answer.contract.dequantised is not None,
    )
    observed, expected = _normalised(answer, chunk, m)
    error = observed - expected
    exact = m
    if not bool(torch.isfinite(error).all()):
        # What is NaN or infinite by right has to be matched and has no size; nothing else may be hidden by it.
        m = _sized(m)
        state.strange.add(chunk.rows, chunk.place(mask_mismatch(observed, expected)))
        error = torch.where(torch.isfinite(error), error, 0.0)
    b = budget(m, answer.contract, answer.output, answer.depth, state.z, answer.multiplicity)
    allowed = torch.minimum(b.half + state.z * b.variance.sqrt() + b.working, b.certain)
    _elements(state, chunk, error, observed, expected, b, allowed)
    columns = effective_columns(chunk.values)
    _groups(state, chunk, squares(error, m, b, answer.output, columns), b)
    _signs(state, chunk, error, m, b, answer)
    if answer.lse is not None and answer.contract.lse_base is not None:
        _lse(state, chunk, answer, exact, b)
    if power:
        eager = eager_error(chunk, m, scale, answer.out.dtype)
        if eager is not None:
            state.error.update(error.abs())
            state.eager.update(eager.view(1))
        dead = {name for name, died in state.mutants.items() if died}
        for mutant in mutants(m, chunk, lse=answer.lse is not None, but=dead):
            state.mutants[mutant.name] = _dies(mutant, m, b, allowed, answer.output, columns, state)


def _sized(m: Moments) -> Moments:
    """The moments with 0 where a NaN or infinite key, query or value that is seen left none."""
    values = {name: getattr(m, name) for name in Moments.__dataclass_fields__}
    kept = ("seen", "lse", "value_max", "gain")
    sizes = {name: torch.nan_to_num(value, 0.0, 0.0, 0.0) for name, value in values.items() if name not in kept}
    return replace(m, **sizes, lse=torch.where(m.lse.isnan(), 0.0, m.lse))


def _arranged(rows: Tensor, chunk: Chunk) -> Tensor:
    """Query-major rows [tokens,h,...] in the chunk's own order [x,m,...], fp64."""
    return (rows.transpose(0, 1) if chunk.heads_first else rows).to(torch.float64)


def _normalised(answer: Answer, chunk: Chunk, m: Moments) -> tuple[Tensor, Tensor]:
    """Observed and expected output under the contract's convention for queries without keys."""
    observed = _arranged(answer.out[chunk.rows], chunk)
    match answer.contract.empty_out:
        case "zero":
            return observed, m.out
        case "nan":
            return observed, torch.where(m.empty[..., None], math.nan, m.out)
        case _:
            return torch.where(m.empty[..., None], m.out, observed), m.out


def _places(chunk: Chunk, shape: torch.Size, device: torch.device) -> Tensor:
    """Flat index [x,m,...] of every element in the packed [s,h,...] order."""
    h = shape[0] if chunk.heads_first else shape[1]
    tokens = shape[1] if chunk.heads_first else shape[0]
    rest = math.prod(shape[2:])
    start = chunk.rows.start * h * rest
    flat = torch.arange(start, start + tokens * h * rest, device=device).view(tokens, h, *shape[2:])
    return flat.transpose(0, 1) if chunk.heads_first else flat


def _elements(
    state: State, chunk: Chunk, error: Tensor, observed: Tensor, expected: Tensor, b: Budget, allowed: Tensor
) -> None:
    size = error.abs()
    ratio = size / allowed.clamp_min(1e-300)
    state.element.update(ratio, _places(chunk, ratio.shape, ratio.device), observed, expected, allowed)
    # An error within r of its budget is within r z deviations: below the level of suspicion there is nothing to add.
    largest = float(ratio.max()) if ratio.numel() else 0.0
    if largest <= state.z_suspect / state.z:
        return
    state.deviation.update((size - b.half - b.working).clamp_min(0.0) / b.variance.sqrt().clamp_min(1e-300))
    if not largest <= 1.0:
        state.bad.add(chunk.rows, chunk.place(ratio > 1.0))
        state.certain.update(size / b.certain.clamp_min(1e-300))


def _groups(state: State, chunk: Chunk, sq: Squares, b: Budget) -> None:
    rows = row_sums(sq)
    for name in ("observed", "trace", "frobenius2", "norm"):
        state.rows[name].add(chunk.place(getattr(rows, name)))
    state.rows["coherent"].add(chunk.place(sq.coherent))
    state.columns = add(state.columns, column_sums(sq, b))


def _signs(state: State, chunk: Chunk, error: Tensor, m: Moments, b: Budget, answer: Answer) -> None:
    sign, size = m.out.sign(), m.out.abs()
    total = size.sum(-1)
    # What one row's keys share cannot be told from a bias, nor can the errors of working precision.
    shared = answer.cell * m.coherence.sqrt()
    if answer.contract.partials is not None:
        shared = shared + UNIT_ROUNDOFF[answer.contract.partials]
    drift = shared * total + b.working.sum(-1) + b.drift
    known = (sign * (rounded(m.out, answer.output) - m.out)).sum(-1)
    for name, values in (("signed", (sign * error).sum(-1)), ("sizes", total), ("known", known), ("drift", drift)):
        state.rows[name].add(chunk.place(values))


def _lse(state: State, chunk: Chunk, answer: Answer, m: Moments, b: Budget) -> None:
    assert answer.lse is not None
    observed = _arranged(answer.lse[chunk.rows], chunk)
    stands = m.empty & torch.isfinite(observed) & (observed <= SENTINEL)
    if answer.contract.lse_base == "2":
        observed = observed * LN2
    match answer.contract.empty_lse:
        case "undefined":
            observed, expected = torch.where(m.empty, m.lse, observed), m.lse
        case "sentinel":
            expected = torch.where(m.empty & ~stands, SENTINEL, m.lse)
            observed = torch.where(stands, m.lse, observed)
        case declared:
            expected = torch.where(m.empty, EMPTY_LSE[declared], m.lse)
    strange = mask_mismatch(observed, expected)
    error = torch.where(torch.isfinite(observed) & torch.isfinite(expected), (observed - expected).abs(), 0.0)
    # An LSE that is NaN by right and was matched has neither an error nor a budget.
    ratio = torch.where(strange, math.inf, torch.where(error > 0, error / b.lse, 0.0))
    if ratio.numel() and bool(ratio.max() > 1.0):
        state.bad_lse.add(chunk.rows, chunk.place(ratio > 1.0))
    state.lse.update(ratio, _places(chunk, ratio.shape, ratio.device), observed, expected, b.lse)


def _dies(
    mutant: Mutant, m: Moments, b: Budget, allowed: Tensor, output: Format, columns: Tensor, state: State
) -> bool:
    """Whether the checks on one element, one row or its LSE would reject this wrong answer."""
    if mutant.lse is not None and bool((((mutant.lse - m.lse).abs() > b.lse) & torch.isfinite(m.lse)).any()):
        return True
    if mutant.out is None:
        return False
    error = mutant.out - m.out
    if bool((error.abs() > allowed).any()):
        return True
    rows = row_sums(squares(error, m, b, output, columns))
    return bool((rows.ratio(state.x) > 1.0).any())


def effective_columns(values: Tensor) -> Tensor:
    """Participation ratio of V's second moments: how many value columns err independently. values [x,t,v]."""
    sample = values[:: max(1, values.shape[0] // 4)][:4, :: max(1, values.shape[1] // 512)]
    sample = torch.nan_to_num(sample, 0.0, 0.0, 0.0)
    if sample.numel() == 0:
        return values.new_ones(())
    gram = sample.mT @ sample
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    frobenius2 = gram.square().sum((-1, -2))
    return torch.where(frobenius2 > 0, trace.square() / frobenius2.clamp_min(1e-300), 1.0).min()
