"""What a contract allows at every element: derived from the formats it declares, never chosen.

::

    |error| <= half_ulp(out)                            rounding of the output
             + z sqrt(u_P^2/3 (B2^2 + C out^2)          rounding of P, independent but for coherence C
                      + 2 u_D^2/3 (B2^2                 rounding of dequantised elements: as values,
                            + 2 s_D^2 (B2^2 + w out^2)) and in the scores, which move by s_D u_D
                      + u_S^2/3 s^2 2 (B2^2 + w out^2)  rounding of the scores, if they are not kept in fp32
                      + u_partial^2/3 B1^2)             rounding of split partials, if there are any
             + (e_exp + g + a) (B1 + |out|)             exp, score and accumulation errors in working precision
             + (tiny_P / 2 + tiny) T max|v| + tiny      what underflows: P below its format, anything below fp32's

A dequantised element is value and part of a score at once, hence the 2 before both. All heads and queries that read it
share its rounding, so over groups of rows that part adds up in size and not in squares.

z comes from the number of elements and the false-alarm budget (``bounds.py``). g bounds the error of a score: a sum of
d products of size scale |q||k| in the accumulator, which grows like sqrt(d) (Higham & Mary 2019), and a the
accumulation of P.V over the keys likewise. Tensor cores truncate where IEEE rounds, hence twice the unit roundoff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from .formats import SMALLEST_NORMAL, SMALLEST_SUBNORMAL, half_ulp
from .moments import Moments


@dataclass(frozen=True, slots=True)
class Budget:
    """Per element of one chunk, fp64."""

    half: Tensor
    """[x,m,v] half an ulp of the output, at the largest value it may have."""
    usual: Tensor
    """[x,m,v] half an ulp of the output, at the value it has one deviation away."""
    variance: Tensor
    """[x,m,v] variance proxy of the errors that are random."""
    coherent: Tensor
    """[x,m,v] the part of ``variance`` that one row shares."""
    drift: Tensor
    """[x,m] how far the roundings of dequantised elements may move the signed sum of a row's errors."""
    working: Tensor
    """[x,m,v] bound on the errors of working precision."""
    certain: Tensor
    """[x,m,v] bound that no arithmetic with these formats can pass: beyond it the contract is broken for certain."""
    lse: Tensor
    """[x,m] bound on the LSE's error, natural log units."""


def accumulated(terms: float, fmt: str) -> float:
    """Relative error of a sum of ``terms`` products kept in ``fmt``, against the sum of their sizes."""
    return 2.0 * UNIT_ROUNDOFF[fmt] * (math.sqrt(terms) + 4.0)


def budget(m: Moments, contract: Contract, output: str, depth: int, z: float, multiplicity: float) -> Budget:
    """The budget of one chunk.

    ``output``: format of the output; ``depth``: d, products in one score; ``z``: deviations allowed;
    ``multiplicity``: how often a row names the same key at most (its copies share one rounding error).
    """
    assert contract.probabilities is not None
    u_p = UNIT_ROUNDOFF[contract.probabilities]
    u_s = UNIT_ROUNDOFF[contract.scores]
    out2 = m.out * m.out
    b2 = m.b2 * multiplicity**0.5
    if contract.row_sum == "rounded":
        # Numerator and denominator share the rounding: each key errs by (v - out), not by v.
        b2 = b2 + m.out.abs() * m.weight2.sqrt()[..., None]
    square = b2 * b2
    coherent = (u_p * u_p / 3.0) * m.coherence[..., None] * out2
    variance = (u_p * u_p / 3.0) * square + coherent
    if contract.scores not in ("fp32", "fp64", "tf32"):
        # A score is rounded relative to its own size; its weight then moves by that much.
        size2 = (m.score_max * m.score_max)[..., None]
        variance = variance + (u_s * u_s / 3.0) * size2 * 2.0 * (square + m.weight2[..., None] * out2)
    u_d = UNIT_ROUNDOFF[contract.dequantised] if contract.dequantised is not None else 0.0
    as_values = (2.0 * u_d * u_d / 3.0) * square
    spread2 = (m.score_spread * m.score_spread)[..., None]
    in_scores = (2.0 * u_d * u_d / 3.0) * spread2 * 2.0 * (square + m.weight2[..., None] * out2)
    variance = variance + as_values + in_scores
    coherent = coherent + as_values + in_scores
    # Columns round for themselves as values; a score moves all columns of its key.
    drift = z * (as_values.sum(-1).sqrt() + in_scores.sqrt().sum(-1))
    if contract.partials is not None:
        u_partial = UNIT_ROUNDOFF[contract.partials]
        # The keys of one part share its rounding, and rows with the same keys may share all of it.
        coherent = coherent + (u_partial * u_partial / 3.0) * out2
        variance = variance + (u_partial * u_partial / 3.0) * (m.b1 * m.b1 + out2)
    score = score_error(contract, depth) * m.score_size_max + UNIT_ROUNDOFF["fp32"] * (m.score_max + 8.0)
    keys = m.seen.clamp_min(1).to(m.out.dtype).sqrt() + 4.0
    accumulation = 2.0 * UNIT_ROUNDOFF[contract.accumulator] * keys
    working = (contract.exp_error + score + accumulation)[..., None] * (m.b1 + m.out.abs())
    # P is at most 1: what lies below its smallest number is lost, and so is what fp32 arithmetic flushes to zero, in
    # weights that are far below the largest or attenuated by a sink, and in the output.
    flushed = SMALLEST_NORMAL["fp32"]
    tiny = SMALLEST_SUBNORMAL.get(contract.probabilities, 0.0) / contract.probability_scale
    lost = (flushed + 0.5 * tiny) * m.seen.to(m.out.dtype)
    working = working + lost[..., None] * m.value_max + flushed
    size = m.out.abs()
    half = half_ulp(size + z * variance.sqrt() + working, output)
    usual = half_ulp(size + variance.sqrt(), output)
    shared = u_p * (1.0 + (u_p if contract.row_sum == "unrounded" else 1.0))
    certain = half + shared * m.b1 + working
    if contract.scores not in ("fp32", "fp64", "tf32"):
        certain = certain + u_s * m.score_max[..., None] * (m.b1 + size)
    if u_d:
        certain = certain + u_d * m.b1 + torch.expm1(2.0 * u_d * m.score_size_max)[..., None] * (m.b1 + size)
    if contract.partials is not None:
        certain = certain + UNIT_ROUNDOFF[contract.partials] * m.b1
    return Budget(half, usual, variance, coherent, drift, working, certain, lse_budget(m, contract, depth, z))


def score_error(contract: Contract, depth: int) -> float:
    """Relative error of a score against scale |q||k|."""
    error = accumulated(depth, contract.accumulator)
    if contract.scores == "tf32":
        error += 2.0 * UNIT_ROUNDOFF["tf32"]
    return error


def lse_budget(m: Moments, contract: Contract, depth: int, z: float) -> Tensor:
    """Bound on the error of log(sum exp(score)), natural log units [x,m]."""
    u32 = UNIT_ROUNDOFF["fp32"]
    finite = torch.where(torch.isfinite(m.lse), m.lse.abs(), 0.0)
    bound = contract.exp_error + score_error(contract, depth) * m.score_size
    bound = bound + u32 * (8.0 + 4.0 * finite + 4.0 * m.score_max)
    bound = bound + contract.lse_error * torch.maximum(finite, torch.ones_like(finite))
    bound = bound + 2.0 * u32 * m.seen.clamp_min(1).to(bound.dtype).sqrt()
    if contract.scores not in ("fp32", "fp64", "tf32"):
        bound = bound + z * UNIT_ROUNDOFF[contract.scores] * m.score_max * m.weight2.sqrt()
    if contract.dequantised is not None:
        bound = bound + z * UNIT_ROUNDOFF[contract.dequantised] * m.score_spread * m.weight2.sqrt()
    if contract.row_sum == "rounded":
        assert contract.probabilities is not None
        u_p = UNIT_ROUNDOFF[contract.probabilities]
        bound = bound + u_p * torch.minimum(torch.ones_like(bound), z * ((m.weight2 + m.coherence) / 3.0).sqrt())
    return bound
