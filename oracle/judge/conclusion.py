"""From the evidence on an attention answer to findings, each with its p-value or proof."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from ..verdict import Worst
from .bounds import FALSE_ALARM, SHARES, SUSPICION
from .evidence import Peak
from .findings import Judgement, spelled
from .state import State
from .tally import Sums

FAIL, SUSPECT = FALSE_ALARM / SHARES, SUSPICION / SHARES
AXES = ("queries", "heads", "columns")
#: Largest exponent taken from a statistic: exp(-700) is still a number.
BOTTOM = 700.0


def conclude(state: State) -> Judgement:
    """All checks on one answer; see ``bounds`` for the chances."""
    result = Judgement()
    if state.strange.any():
        message = "NaN or infinity where the reference has another value"
        result.add("structure", message, where=spelled(state.strange, AXES))
    _element(result, state)
    _groups(result, state)
    _bias(result, state)
    _lse(result, state)
    result.survivors = tuple(sorted(name for name, died in state.mutants.items() if not died))
    return result


def _element(result: Judgement, state: State) -> None:
    if state.element.value is None:
        return
    worst = _worst("out", state.element, state.shape)
    result.worst.append(worst)
    result.measures["element"] = worst.ratio
    message = f"an element is off by {worst.ratio:.3g} times its budget"
    place = spelled(state.bad, AXES)
    if state.certain.number() > 1.0:
        result.add("element", message, where=place)
        return
    deviation = min(state.deviation.number(), 37.0)
    p = min(1.0, 2.0 * math.prod(state.shape) * math.exp(-(deviation**2) / 2.0))
    result.statistical("element", message, p, FAIL, SUSPECT, place)


def _worst(output: str, peak: Peak, shape: tuple[int, ...]) -> Worst:
    flat, *numbers = peak.beside
    place = tuple(int(i) for i in torch.unravel_index(flat.cpu(), shape))
    return Worst(output, place, *(float(number) for number in numbers))


def _groups(result: Judgement, state: State) -> None:
    heads, columns, total = state.heads, state.columns, state.total
    if heads is None or columns is None or total is None or state.row.value is None:
        return
    s, h, _ = state.shape
    query, head = divmod(int(state.row.beside[0]), h)
    rows = s * h
    measured = [
        ("row", state.row.number(), state.row_exponent.number(), rows, f"query {query}, head {head}"),
        ("query", state.query.number(), state.query_exponent.number(), rows, "all heads of one query"),
        ("head", *_top(heads, state.x), heads.trace.numel(), _which(heads, "head")),
        ("column", *_top(columns, state.x), columns.trace.numel(), _which(columns, "column")),
        ("global", *_top(total, state.x), 1, "all elements"),
    ]
    for check, ratio, top, count, place in measured:
        result.measures[check] = ratio
        p = math.nan if math.isnan(top) else min(1.0, count * math.exp(-min(top, BOTTOM)))
        message = f"squared errors of {place} are {ratio:.3g} times what rounding explains"
        result.statistical(check, message, p, FAIL, SUSPECT)
    result.measures["mean_square"] = float(total.observed / total.trace.clamp_min(1e-300))


def _top(sums: Sums, x: float) -> tuple[float, float]:
    return _largest(sums.ratio(x)), _largest(sums.exponent())


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _which(sums: Sums, name: str) -> str:
    return f"{name} {int(sums.exponent().argmax())}" if sums.trace.numel() else name


def _bias(result: Judgement, state: State) -> None:
    """A mean error toward or away from zero that neither noise nor a shared rounding explains."""
    if not state.signed.parts:
        return
    signed, sizes = state.signed.all(), state.sizes.all()
    floor_sum = float(state.known.all().sum().abs() + state.drift.all().sum())
    used = sizes > 0
    signed, sizes = signed[used], sizes[used]
    rows = signed.numel()
    if rows < 8:
        return  # no estimate of the spread between rows
    total = float(sizes.sum())
    mean = float(signed.sum()) / total
    error = float((signed - mean * sizes).square().sum() * rows / (rows - 1)) ** 0.5 / total
    floor = floor_sum / total
    result.measures["bias"] = mean
    result.measures["bias_floor"] = floor
    excess = max(0.0, abs(mean) - floor)
    # Where all rows err alike there is no spread, and any excess is a bias.
    p = float(2.0 * stats.t.sf(excess / error, rows - 1)) if error > 0.0 else float(excess == 0.0)
    way = "larger" if mean > 0 else "smaller"
    message = f"outputs are {way} than exact by {abs(mean):.2e} of their size on average"
    result.statistical("bias", message, p, FAIL, SUSPECT)


def _lse(result: Judgement, state: State) -> None:
    if state.lse.value is None:
        return
    worst = _worst("lse", state.lse, state.shape[:2])
    ratio = state.lse.number()
    result.worst.append(worst)
    result.measures["lse"] = ratio
    if state.bad_lse.any():
        message = f"an LSE is off by {ratio:.3g} times its budget"
        result.add("lse", message, where=spelled(state.bad_lse, AXES[:2]))
