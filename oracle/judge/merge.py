"""Judges an LSE merge: out = (e^(a-m) A + e^(b-m) B) / (e^(a-m) + e^(b-m)), m = max(a, b), lse = m + ln(...).

Everything happens in working precision, so the budget is half an ulp of the output plus a few roundings of sizes that
the formula names: a weight errs by what exp errs, plus what rounding its exponent costs it. That exponent is the
distance of the sides, or, where the weights are exp(a - lse) as in the combine kernels of FlashAttention, a difference
from the merged LSE, which was rounded itself.

Weights add up to 1, so one of them may be taken as what the other leaves, and the sum as A + w (B - A): as ring
attention merges its blocks. Then a weight near 1 and the difference of the sides are rounded, and the error is relative
to the whole sides, however little one of them weighs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...reference import merge_lse
from ..verdict import Worst
from .findings import Judgement, mask_mismatch, where
from .formats import format_of, half_ulp
from .units import LN2

#: Roundings between the inputs and a weighted sum of two: difference, exp, sum, quotient, two products, one addition.
ROUNDINGS = 8.0
#: Roundings of A + w (B - A) that are relative to the whole sides: weight, difference, product, sum.
WHOLE = 4.0


def judge(
    out: Tensor, lse: Tensor, contract: Contract, *, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> Judgement:
    """Compare a merge [s,h,v], [s,h] with the formula in fp64.

    An implementation that works in base 2 reads the numbers it is given as base-2 logarithms, and is judged as such.
    """
    result = Judgement()
    sides = {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}
    expected, limit, expected_lse, limit_lse, wide = expectation(contract, **sides)
    promised = _promised(contract, lse_a, lse_b)
    seen = torch.where(promised[..., None], out.to(torch.float64), expected)
    _compare(result, "out", "element", seen, expected, limit)
    told = torch.where(promised, lse.double() * _unit(contract), expected_lse)
    _compare(result, "lse", "lse", told, expected_lse, limit_lse)
    result.survivors = _survivors(expected, limit, wide)
    return result


def _unit(contract: Contract) -> float:
    """Natural log units of one unit of an LSE."""
    return LN2 if contract.lse_base == "2" else 1.0


def expectation(
    contract: Contract, *, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """Exact out and its budget [s,h,v], exact LSE and its budget [s,h], and the inputs, all fp64, natural log."""
    unit = _unit(contract)
    wide = [out_a.double(), lse_a.double() * unit, out_b.double(), lse_b.double() * unit]
    expected, expected_lse = merge_lse(*wide)
    weights = [torch.where(torch.isfinite(side), (side - expected_lse).exp(), 0.0) for side in (wide[1], wide[3])]
    sizes = sum(
        (w[..., None] * torch.nan_to_num(side).abs() for w, side in zip(weights, (wide[0], wide[2]), strict=True)),
        torch.zeros_like(expected),
    )
    distance = torch.where(torch.isfinite(wide[1] - wide[3]), (wide[1] - wide[3]).abs(), 0.0)
    u32 = UNIT_ROUNDOFF["fp32"]
    # A weight may be taken relative to the merged LSE, which is rounded relative to its own size.
    finite_lse = torch.where(torch.isfinite(expected_lse), expected_lse.abs(), 0.0)
    relative = contract.exp_error + u32 * (ROUNDINGS + distance + finite_lse)
    output = contract.output or format_of(out_a.dtype)
    limit = 2.0 * relative[..., None] * sizes
    both = torch.isfinite(wide[1] - wide[3])[..., None]
    limit += torch.where(both, WHOLE * u32 * (wide[0].abs() + wide[2].abs()), 0.0)
    limit = limit + half_ulp(expected.abs() + limit, output)
    limit_lse = contract.exp_error + u32 * (ROUNDINGS + 2.0 * finite_lse + distance)
    return expected, limit, expected_lse, limit_lse, wide


def _promised(contract: Contract, lse_a: Tensor, lse_b: Tensor) -> Tensor:
    """Rows [s,h] whose result the contract promises."""
    if contract.empty_side == "ignored":
        return torch.ones_like(lse_a, dtype=torch.bool)
    return ~(lse_a.isneginf() | lse_b.isneginf())


def _compare(result: Judgement, output: str, check: str, observed: Tensor, expected: Tensor, limit: Tensor) -> None:
    names = ("queries", "heads", "columns")[: observed.dim()]
    strange = mask_mismatch(observed, expected)
    if bool(strange.any()):
        message = f"NaN or infinity in {output} where the reference has another value"
        result.add("structure", message, where=where(strange, names))
    finite = torch.isfinite(observed) & torch.isfinite(expected)
    error = torch.where(finite, (observed - expected).abs(), 0.0)
    ratio = error / limit
    if not ratio.numel():
        return
    flat = int(ratio.argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), ratio.shape))
    worst = Worst(output, place, *(float(t.flatten()[flat]) for t in (observed, expected, limit)))
    result.worst.append(worst)
    result.measures[check] = worst.ratio
    if bool((ratio > 1.0).any()):
        message = f"{output} is off by {worst.ratio:.3g} times its budget"
        result.add(check, message, where=where(ratio > 1.0, names))


def _survivors(expected: Tensor, limit: Tensor, wide: list[Tensor]) -> tuple[str, ...]:
    if not expected.numel():
        return ()
    out_a, lse_a, out_b, lse_b = wide
    wrong = {
        "zeros": torch.zeros_like(expected),
        "mean of both": 0.5 * (torch.nan_to_num(out_a) + torch.nan_to_num(out_b)),
        "first side": torch.nan_to_num(out_a),
        "second side": torch.nan_to_num(out_b),
        "LSE in base 2": merge_lse(out_a, lse_a * math.log(2.0), out_b, lse_b * math.log(2.0))[0],
        "sides exchanged": merge_lse(out_b, lse_a, out_a, lse_b)[0],
    }
    survivors = []
    for name, out in wrong.items():
        apart = torch.nan_to_num(out - expected, nan=torch.inf).abs()
        if bool((apart > 1e-9 * expected.abs().max()).any()) and not bool((apart > limit).any()):
            survivors.append(name)
    return tuple(sorted(survivors))
