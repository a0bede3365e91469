"""Findings and the words for where errors lie."""

import math

import pytest
import torch

from attnoracle.oracle.judge.findings import Judgement, mask_mismatch, where


def _hit(size: int, *places: int) -> torch.Tensor:
    bad = torch.zeros(size, dtype=torch.bool)
    bad[list(places)] = True
    return bad


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (_hit(5), ""),
        (_hit(3, 0, 1, 2), "3 of 3 elements; rows all"),
        (_hit(9, 4), "1 of 9 elements; rows 4"),
        (_hit(9, 1, 2, 3, 7), "4 of 9 elements; rows 1-3,7"),
        (_hit(600, *range(127, 600, 128)), "4 of 600 elements; rows = 127 mod 128"),
        (_hit(64, *range(3, 64, 16)), "4 of 64 elements; rows = 3 mod 16"),
        (_hit(300, 127, 255), "2 of 300 elements; rows 127,255"),
        (_hit(600, 127, 255, 511), "3 of 600 elements; rows 127,255,511"),
        (_hit(40, *range(0, 40, 3)), "14 of 40 elements; rows 0,3,6,9,12,15,… (14 of 40)"),
    ],
    ids=["none", "all", "one", "spans", "mod-128", "mod-16", "too-few-for-a-period", "period-with-a-gap", "many-spans"],
)
def test_where(bad, words):
    assert where(bad, ("rows",)) == words


def test_where_names_every_axis():
    bad = torch.zeros(6, 4, 2, dtype=torch.bool)
    bad[2:4, 1, :] = True
    assert where(bad, ("queries", "heads", "columns")) == "4 of 48 elements; queries 2-3; heads 1; columns all"


@pytest.mark.parametrize(
    ("p", "files"), [(0.0, "findings"), (1e-7, "findings"), (1e-4, "suspicions"), (0.5, None), (1.0, None)]
)
def test_a_statistic_is_filed_by_its_p_value(p, files):
    result = Judgement()
    result.statistical("row", "words", p, 1e-6, 1e-3, "rows 1")
    filed = {name: getattr(result, name) for name in ("findings", "suspicions")}
    assert {name for name, found in filed.items() if found} == ({files} if files else set())
    for found in filed.values():
        assert all((one.proved, one.p_value, one.where) == (False, p, "rows 1") for one in found)


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.5])
def test_a_p_value_that_is_none_raises(p):
    with pytest.raises(ArithmeticError, match="check 'row': the p-value came out as"):
        Judgement().statistical("row", "words", p, 1e-6, 1e-3)


def test_what_is_not_finite_has_to_be_the_same():
    nan, inf = math.nan, math.inf
    observed = torch.tensor([1.0, nan, nan, inf, -inf, inf, 2.0, 2.0, 3.0])
    expected = torch.tensor([9.0, nan, 1.0, inf, inf, 5.0, nan, inf, 3.0])
    assert mask_mismatch(observed, expected).tolist() == [False, False, True, False, True, True, True, True, False]
