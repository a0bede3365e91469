"""From the evidence on an attention answer to findings, each with its p-value or proof."""

from __future__ import annotations

import math

import torch
from scipy import special

from ..verdict import Worst
from .bounds import FALSE_ALARM, SHARES, SUSPICION
from .evidence import Peak
from .findings import Judgement, spelled
from .state import State
from .tally import pooled

FAIL, SUSPECT = FALSE_ALARM / SHARES, SUSPICION / SHARES
#: Patches of an error map along each axis.
MAP = 32
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
    if result.findings:
        result.error_map = _map(state)
    if state.eager.number() > 0.0:
        result.measures["error_over_eager"] = state.error.number() / state.eager.number()
    result.survivors = tuple(sorted(name for name, died in state.mutants.items() if not died))
    return result


def _map(state: State) -> tuple[tuple[float, ...], ...]:
    """Row sums over their limits [s,h], reduced to patches; infinite where a NaN or infinity does not belong."""
    if state.columns is None:
        return ()
    ratio = state.row_sums().ratio(state.x).to(torch.float32)
    strange = state.strange.axes
    if state.strange.any():
        ratio = torch.where(strange[0][:, None] & strange[1][None, :], torch.inf, ratio)
    patches = torch.nn.functional.adaptive_max_pool2d(ratio[None], tuple(min(MAP, n) for n in ratio.shape))[0]
    return tuple(tuple(float(f"{value:.3g}") for value in row) for row in patches.tolist())


def _element(result: Judgement, state: State) -> None:
    if not state.element.values:
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
    flat, *numbers = peak.entries()
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(int(flat)), shape))
    return Worst(output, place, *numbers)


def _groups(result: Judgement, state: State) -> None:
    """Squared errors by row, query, head, column and in all, against what rounding explains."""
    if state.columns is None:
        return
    rows, coherent = state.row_sums(), state.rows["coherent"].all()
    groups = [
        ("row", rows),
        ("query", pooled(rows, coherent, (1,))),
        ("head", pooled(rows, coherent, (0,))),
        ("column", state.columns),
        ("global", pooled(rows, coherent, (0, 1))),
    ]
    for check, sums in groups:
        exponents = sums.exponent()
        if not exponents.numel():
            continue
        ratio, top = float(sums.ratio(state.x).max()), float(exponents.max())
        result.measures[check] = ratio
        p = math.nan if math.isnan(top) else min(1.0, exponents.numel() * math.exp(-min(top, BOTTOM)))
        place = [int(i) for i in torch.unravel_index(exponents.argmax(), exponents.shape)]
        message = f"squared errors of {_named(check, place)} are {ratio:.3g} times what rounding explains"
        result.statistical(check, message, p, FAIL, SUSPECT)
        if check == "global":
            result.measures["mean_square"] = float(sums.observed / sums.trace.clamp_min(1e-300))


def _named(check: str, place: list[int]) -> str:
    if check == "row":
        return f"query {place[0]}, head {place[1]}"
    return "all elements" if check == "global" else f"{check} {place[0]}"


def _bias(result: Judgement, state: State) -> None:
    """A mean error toward or away from zero that neither noise nor a shared rounding explains."""
    if not state.rows["signed"].parts:
        return
    signed, sizes, known, drift = (state.rows[name].all() for name in ("signed", "sizes", "known", "drift"))
    floor_sum = float(known.sum().abs() + drift.sum())
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
    p = float(2.0 * special.stdtr(rows - 1, -excess / error)) if error > 0.0 else float(excess == 0.0)
    way = "larger" if mean > 0 else "smaller"
    message = f"outputs are {way} than exact by {abs(mean):.2e} of their size on average"
    result.statistical("bias", message, p, FAIL, SUSPECT)


def _lse(result: Judgement, state: State) -> None:
    if not state.lse.values:
        return
    worst = _worst("lse", state.lse, state.shape[:2])
    ratio = state.lse.number()
    result.worst.append(worst)
    result.measures["lse"] = ratio
    if state.bad_lse.any():
        message = f"an LSE is off by {ratio:.3g} times its budget"
        result.add("lse", message, where=spelled(state.bad_lse, AXES[:2]))
