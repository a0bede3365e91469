"""The tail bounds: exact inverses of each other, and never passed by errors that they are meant for."""

import math

import pytest
import torch

from attnoracle.oracle.judge.bounds import (
    FALSE_ALARM,
    SHARES,
    deviations,
    exponent,
    quadratic_exponent,
    quadratic_limit,
)


@pytest.mark.parametrize("count", [1, 1000, 10**9])
@pytest.mark.parametrize("chance", [0.5, 1e-3, FALSE_ALARM / SHARES])
def test_deviations_invert_the_tail_bound(count, chance):
    z = deviations(count, chance)
    assert count * 2 * math.exp(-(z**2) / 2) == pytest.approx(chance)
    assert count * math.exp(-exponent(count, chance)) == pytest.approx(chance)


def test_nothing_to_bound_counts_as_one_element():
    assert deviations(0, 1e-3) == deviations(1, 1e-3)
    assert exponent(0, 1e-3) == exponent(1, 1e-3)


@pytest.mark.parametrize("frobenius2", [0.0, 0.25, 40.0])
@pytest.mark.parametrize("norm", [0.125, 1.0, 7.0])
@pytest.mark.parametrize("x", [0.0, 0.5, 23.0, 600.0])
def test_quadratic_limit_and_exponent_are_inverse(frobenius2, norm, x):
    trace, frobenius2, norm = (torch.tensor(value, dtype=torch.float64) for value in (3.0, frobenius2, norm))
    limit = quadratic_limit(trace, frobenius2, norm, x)
    assert float(quadratic_exponent(limit, trace, frobenius2, norm)) == pytest.approx(x, rel=1e-9, abs=1e-9)


def test_a_sum_below_its_trace_has_exponent_0():
    one = torch.ones((), dtype=torch.float64)
    assert float(quadratic_exponent(0.5 * one, one, one, one)) == 0.0


def test_a_sum_that_is_certain_has_a_large_finite_exponent_where_nothing_may_err():
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    assert 1e6 < float(quadratic_exponent(one, zero, zero, zero)) < math.inf


def _uniform(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Errors of rounding to a grid of spacing 2: uniform on [-1, 1], variance 1/3."""
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def test_single_rounding_errors_stay_within_their_deviations():
    sigma = (1 / 3) ** 0.5
    weights = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = _uniform(20000, 400, 2) @ weights
    z = deviations(len(sums), 1e-3)
    assert float(sums.abs().max()) < z * sigma * float(weights.norm())
    # It is no idle bound: at a tenth of the deviations many lie outside.
    assert int((sums.abs() > 0.1 * z * sigma * weights.norm()).sum()) > 5000


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0], ids=lambda share: f"correlated-{share:g}")
def test_the_quadratic_bound_holds_with_the_chance_it_states(shared):
    """Vectors of 24 bounded errors that share a common part: the bound knows their covariance."""
    own, common = _uniform(40000, 24, 3), _uniform(40000, 1, 4)
    errors = own * (1 - shared) ** 0.5 + common * shared**0.5
    covariance = (torch.eye(24).double() * (1 - shared) + shared) / 3
    trace, frobenius2, norm = covariance.trace(), covariance.square().sum(), torch.linalg.matrix_norm(covariance, 2)
    squares = errors.square().sum(1)
    for x in (1.0, 2.0, 4.0, 7.0):
        beyond = float((squares > quadratic_limit(trace, frobenius2, norm, x)).double().mean())
        assert beyond <= math.exp(-x)
    assert float((squares > trace).double().mean()) > 0.2
