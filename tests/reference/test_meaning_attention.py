"""What the attention operators mean, on cases small enough to work out by hand.

One head and one dim unless said otherwise; q = 1, so a key is its own score.
"""

from __future__ import annotations

from math import e, inf, log, nan

import mpmath
import pytest
import torch
from torch import float64, tensor

from attnoracle.reference import dense_mha, masked_mha, sparse_mqa


def column(*values: float) -> torch.Tensor:
    """One head, one dim."""
    return tensor(values, dtype=float64).view(-1, 1, 1)


def sums(*lengths: int) -> torch.Tensor:
    return tensor([0, *lengths]).cumsum(0).int()


#: Exact but for the roundings of a handful of float64 operations.
ROUNDINGS = 16 * 2.0**-53


def check(result: tuple[torch.Tensor, torch.Tensor], out: list, lse: list) -> None:
    assert result[0].flatten().tolist() == pytest.approx(out, rel=ROUNDINGS, abs=0, nan_ok=True)
    assert result[1].flatten().tolist() == pytest.approx(lse, rel=ROUNDINGS, abs=ROUNDINGS)


def dense(q, k, v, cu_q, cu_k, *, scale=1.0, causal=True):
    return dense_mha(column(*q), column(*k), column(*v), cu_q, cu_k, scale=scale, causal=causal)


def test_two_keys():
    """Scores 0 and ln 3: weights 1/4 and 3/4, 4/4 + 3 * 8/4 = 7, lse = ln(1 + 3)."""
    check(dense([1], [0, log(3)], [4, 8], sums(1), sums(2)), [7], [log(4)])


def test_scale_multiplies_the_product():
    check(dense([2], [0, log(3)], [4, 8], sums(1), sums(2), scale=0.5), [7], [log(4)])


def test_causal_is_bottom_right_aligned():
    """Two queries, three keys: the last query sees all, the one before it all but the last."""
    check(dense([1, 1], [0, 0, 0], [1, 2, 6], sums(2), sums(3)), [1.5, 3], [log(2), log(3)])


def test_more_queries_than_keys():
    """Three queries, two keys: the first query sees none."""
    check(dense([1, 1, 1], [0, 0], [1, 2], sums(3), sums(2)), [0, 1, 1.5], [-inf, 0, log(2)])


def test_without_causality_every_query_sees_every_key():
    check(dense([1, 1, 1], [0, 0], [1, 2], sums(3), sums(2), causal=False), [1.5] * 3, [log(2)] * 3)


def test_requests_do_not_see_each_other():
    """Requests of (1 query, 2 keys), (1, 0), (0, 1), (1, 1)."""
    result = dense([1, 1, 1], [0, 0, 0, 0], [1, 2, 50, 9], sums(1, 1, 0, 1), sums(2, 0, 1, 1))
    check(result, [1.5, 0, 9], [log(2), -inf, 0])


def test_heads_are_apart():
    q, k = torch.ones(1, 2, 1, dtype=float64), tensor([[[0.0], [log(3)]], [[log(3)], [0.0]]], dtype=float64)
    v = tensor([[[4.0, 1.0], [4.0, 1.0]], [[8.0, 1.0], [8.0, 1.0]]], dtype=float64)
    out, lse = dense_mha(q, k, v, sums(1), sums(2), scale=1.0)
    check((out, lse), [7, 1, 5, 1], [log(4), log(4)])  # weights 1/4, 3/4 and 3/4, 1/4


def test_nan_of_a_seen_value_comes_out():
    check(dense([1, 1], [0, 0], [1, nan], sums(2), sums(2)), [1, nan], [0, log(2)])


def masked(mask, v, *, queries=1, causal=False):
    k = column(*[0.0] * len(v))
    words = tensor([mask], dtype=torch.int64).to(torch.int32)
    q = column(*[1.0] * queries)
    return masked_mha(q, k, column(*v), words, sums(queries), sums(len(v)), scale=1.0, causal=causal)


def test_bit_j_allows_key_j():
    check(masked([[0b101]], [1, 2, 9]), [5], [log(2)])


def test_sign_bit_and_second_word():
    """Key 31 is the sign bit of word 0, key 32 the lowest bit of word 1; the bits past key 32 are garbage."""
    values = [0.0] * 31 + [3, 8]
    check(masked([[-(2**31), 0]], values), [3], [0])
    check(masked([[0, -1]], values), [8], [0])
    check(masked([[-(2**31), -2]], values), [3], [0])


def test_mask_and_causality_both_hold():
    """Query 0 sees keys 0 and 1 by causality, key 2 by its bit alone: nothing is left."""
    check(masked([[0b100], [0b101], [-1]], [1, 2, 9], queries=2, causal=True), [0, 5], [-inf, log(2)])


def sparse(kv, indices, **options):
    rows = tensor(kv, dtype=float64).view(len(kv), -1)
    q = torch.ones(len(indices), 1, rows.shape[1], dtype=float64)
    return sparse_mqa(q, rows, tensor(indices, dtype=torch.int32), scale=1.0, value_dim=1, **options)


#: Rows of (value, rope); the score with q = (1, 1) is their sum, here 0, 0, ln 3 and 0.
CACHE = [[2, -2], [5, -5], [10, log(3) - 10], [0, 0]]


def test_values_are_the_first_columns():
    check(sparse(CACHE, [[0, 2]]), [0.25 * 2 + 0.75 * 10], [log(4)])


def test_duplicates_count_each_time():
    check(sparse(CACHE, [[0, 0, 1]]), [3], [log(3)])


@pytest.mark.parametrize("invalid", [-1, -9, 4, 2**31 - 1, -(2**31)])
def test_invalid_indices_are_ignored_anywhere(invalid):
    check(sparse(CACHE, [[invalid, 0, invalid, 1, invalid], [invalid] * 5]), [3.5, 0], [log(2), -inf])


def test_lengths_count_entries_not_keys():
    """Of [-1, 0, 1] the first two entries matter, so key 1 does not."""
    lengths = tensor([2, 0, 9], dtype=torch.int32)
    check(sparse(CACHE, [[-1, 0, 1]] * 3, lengths=lengths), [2, 0, 3.5], [0, -inf, log(2)])


@pytest.mark.parametrize(
    "sink,share", [(0.0, 1 / 2), (log(3), 1 / 4), (-inf, 1.0), (inf, 0.0)], ids=["equal", "ln3", "none", "all"]
)
def test_sink_takes_weight_and_leaves_lse(sink, share):
    """One key with score 0: the sink gets e^sink / (1 + e^sink); a query with no key stays 0."""
    sinks = tensor([sink], dtype=float64)
    check(sparse(CACHE, [[1], [-1]], sink=sinks), [5 * share, 0], [0, -inf])


def test_empty_cache():
    nothing, indices = torch.zeros(0, 2, dtype=float64), tensor([[0, -1]], dtype=torch.int32)
    check(sparse_mqa(torch.ones(1, 1, 2), nothing, indices, scale=1.0, value_dim=1), [0], [-inf])


def test_softmax_to_fifty_digits():
    """Scores that overflow if exponentiated as they are, and weights far below one."""
    mpmath.mp.dps = 50
    scores, values = [1000.0, 999.0, 960.0, -1000.0], [1.0, -3.0, 1e15, 7.0]
    weights = [mpmath.exp(mpmath.mpf(score)) for score in scores]
    mass = mpmath.fsum(weights)
    out = mpmath.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / mass
    result = dense([1], scores, values, sums(1), sums(4))
    # The weights are exp(score - lse): a rounding of lse, at 1000, is a relative error of 2^-44.
    assert result[0].item() == pytest.approx(float(out), rel=2.0**-43)
    assert result[1].item() == pytest.approx(float(mpmath.log(mass)), rel=2.0**-52)


def test_lse_is_natural():
    check(dense([1], [1.0], [3], sums(1), sums(1)), [3], [log(e)])
