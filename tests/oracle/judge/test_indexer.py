"""The judge of indexer scores: an exact window, and a budget of working precision."""

import math
from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.judge import indexer
from attnoracle.reference import indexer_scores

CONTRACT = Contract(probabilities="fp32", output="fp32", lse_base=None)


@pytest.fixture
def inputs(normal):
    def make(s=6, t=20, heads=4, e=16):
        return {
            "q": normal(s, heads, e, seed=1).bfloat16(),
            "k": normal(t, e, seed=2).bfloat16(),
            "k_scale": normal(t, seed=3).abs().float() + 0.37,
            "weights": normal(s, heads, seed=4).float(),
            "ks": torch.arange(s, dtype=torch.int32),
            "ke": torch.arange(s, dtype=torch.int32) + t - s,
        }

    return make


def _exact(inputs):
    wide = {name: x if x.dtype is torch.int32 else x.double() for name, x in inputs.items()}
    scores = indexer_scores(**wide)
    return scores[0] if isinstance(scores, tuple) else scores


def test_right_scores_pass_and_the_input_has_power(inputs):
    given = inputs()
    judgement = indexer.judge(_exact(given).float(), CONTRACT, indexer.packed(**given))
    assert not judgement.findings and judgement.survivors == ()
    assert 0 < judgement.measures["element"] < 1


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_not_finite_inside_the_window_never_passes(inputs, said):
    given = inputs()
    scores = _exact(given).float()
    scores[2, 5] = said
    (finding,) = indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings
    assert (finding.check, finding.where) == ("structure", "1 of 120 elements; queries 2; keys 5")


@pytest.mark.parametrize("said", [0.0, math.nan, math.inf, -3e38], ids=str)
def test_outside_the_window_only_minus_infinity_is_right(inputs, said):
    given = inputs()
    scores = _exact(given).float()
    scores[2, 1] = said
    (finding,) = indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings
    assert (finding.check, finding.where) == ("structure", "1 of 120 elements; queries 2; keys 1")


def test_a_wrong_score_is_seen_and_placed(inputs):
    given = inputs()
    scores = _exact(given).float()
    scores[3, 9] += scores[3, 9].abs() * 1e-3 + 1e-3
    judgement = indexer.judge(scores, CONTRACT, indexer.packed(**given))
    assert [one.check for one in judgement.findings] == ["element"]
    assert judgement.worst[0].index == (3, 9)


def test_scores_kept_in_bf16_fail_unless_declared(inputs):
    given = inputs()
    scores = _exact(given).bfloat16().float()
    assert [one.check for one in indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings] == ["element"]
    declared = Contract(probabilities="fp32", output="bf16", lse_base=None)
    assert not indexer.judge(scores, declared, indexer.packed(**given)).findings


def test_nan_in_the_expected_scores_is_no_wildcard(inputs):
    given = inputs()
    given["k"][8, 0] = math.nan
    scores = _exact(given).float()
    assert bool(scores[0, 8].isnan())
    assert not indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings
    scores[0, 8] = 1.0
    assert "structure" in {one.check for one in indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings}


@pytest.mark.parametrize(
    ("change", "survivor"),
    [
        ({"weights": lambda w: w * 0 + 1e-30}, "zeros"),
        ({"k_scale": lambda x: x * 0 + 1 + 2.0**-23}, "key scales forgotten"),
        ({"weights": lambda w: torch.cat((w[:, :-1], w[:, -1:] * 1e-8), 1)}, "last head dropped"),
    ],
    ids=["zeros", "scales-near-1", "light-last-head"],
)
def test_an_input_without_power_is_named(inputs, change, survivor):
    given = inputs()
    for name, function in change.items():
        given[name] = function(given[name])
    judgement = indexer.judge(_exact(given).float(), CONTRACT, indexer.packed(**given))
    assert not judgement.findings
    if survivor == "zeros":
        assert judgement.survivors == (), "a budget follows the size of what it bounds"
    else:
        assert survivor in judgement.survivors


@pytest.mark.parametrize(("s", "t"), [(0, 5), (3, 0), (0, 0)], ids=str)
def test_nothing_to_score(inputs, s, t):
    given = inputs(s, t)
    given["ks"] = given["ke"] = torch.zeros(s, dtype=torch.int32)
    judgement = indexer.judge(torch.empty(s, t), CONTRACT, indexer.packed(**given))
    assert not judgement.findings and judgement.survivors == ()


@pytest.mark.parametrize("garbage", [0.0, math.nan, math.inf, 7.0], ids=str)
def test_what_stands_outside_a_window_counts_only_where_it_is_declared(inputs, garbage):
    given = inputs()
    scores = _exact(given).float()
    scores[scores == -math.inf] = garbage
    assert [one.check for one in indexer.judge(scores, CONTRACT, indexer.packed(**given)).findings] == ["structure"]
    uncleaned = replace(CONTRACT, outside_window="undefined")
    settled = indexer.settled(scores, uncleaned, **given)
    assert not indexer.judge(settled, uncleaned, indexer.packed(**given)).findings
    settled = indexer.settled(scores.index_fill(1, torch.tensor([7]), garbage), uncleaned, **given)
    assert indexer.judge(settled, uncleaned, indexer.packed(**given)).findings, "the window itself is still judged"


def test_an_implementation_may_leave_the_tail_as_it_was():
    """Two runs differ there, which is no finding; without the declaration it is one."""
    case = Case.parse("indexer_scores:glm-5:h4:q5,3:k20,30:e4m3:randn:contiguous:compressed:s1")

    def uncleaned(ks, ke, max_seqlen_k, **given):
        (clean,) = indexer_scores(ks=ks, ke=ke, max_seqlen_k=max_seqlen_k, **given)
        out = torch.empty_like(clean)
        inside = torch.arange(max_seqlen_k) < (ke - ks)[:, None]
        out[inside] = clean[inside]
        return (out,)

    def verdict(contract):
        return check(case, Implementation("indexer_scores/uncleaned", contract, lambda facts: None, lambda: uncleaned))

    assert verdict(replace(CONTRACT, outside_window="undefined")).status == "PASS"
    assert verdict(CONTRACT).status == "FAIL"
