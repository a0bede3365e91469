"""Two sides on the same cases."""

from __future__ import annotations

import json

import pytest

from attnoracle.oracle.compare import paired
from attnoracle.oracle.records.verdict_json import verdict_record
from attnoracle.oracle.reports.compare_report import record, summary

CASE = "merge_lse:tiny:h2:q5:k5:fp32:randn:contiguous:-:s0"


@pytest.fixture
def sides(make_case, make_verdict, failure):
    """Four cases: neither off, only A, both alike, one side unsupported."""
    cases = [make_case(seed=seed) for seed in range(4)]
    good = [make_verdict(case=case, measures={"element": 0.5}) for case in cases]

    def failed(case):
        return make_verdict("FAIL", case=case, reason=failure.reason, findings=failure.findings, worst=failure.worst)

    a = [good[0], failed(cases[1]), failed(cases[2]), good[3]]
    b = [good[0], good[1], failed(cases[2]), make_verdict("UNSUPPORTED", case=cases[3])]
    return [[verdict_record(one) for one in side] for side in (a, b)]


def test_every_case_has_one_outcome(sides):
    pairs = paired(*sides)
    assert [pair.outcome for pair in pairs] == ["neither", "a", "both", "unjudged"]
    assert [pair.same_failure for pair in pairs] == [False, False, True, False]
    told = summary(["x", "y"], pairs)
    assert (told["neither"], told["a"], told["b"], told["both"], told["unjudged"]) == (1, 1, 0, 1, 1)
    assert told["worst_ratio"] == [float("inf"), float("inf")], "a NaN is infinitely far off"
    assert record(pairs[1])["a"]["status"] == "FAIL"


def test_a_case_that_one_side_lacks_is_left_out(sides):
    assert len(paired(sides[0], sides[1][1:])) == 3


def test_the_command_compares_two_implementations(attnoracle):
    code, out, err = attnoracle("compare", "merge_lse/torch", "merge_lse/triton", "--case", CASE, "--json", "-", "-j1")
    assert code == 0
    document = json.loads(out)
    assert document["schema"]["name"] == "attnoracle.compare"
    assert document["summary"]["neither"] == 1
    assert "1  neither is off" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["merge_lse/torch", "merge_lse/torch"], "two different implementations of one operator"),
        (["merge_lse/torch", "topk_select/torch"], "two different implementations of one operator"),
        (["merge_lse/torhc", "merge_lse/torch"], "nearest: merge_lse/torch"),
        (["merge_lse/torch", "numpy==2.0"], "two implementations or two releases"),
        (["numpy==1.26", "numpy==2.0"], "two releases need --implementation"),
    ],
)
def test_wrong_usage_says_what_to_do(attnoracle, arguments, message):
    code, _, err = attnoracle("compare", *arguments)
    assert (code, message in err) == (2, True)
