"""The judge of attention: which check sees which lie, and what is never believed."""

import math

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.oracle.case import Case
from attnoracle.oracle.config import load
from attnoracle.oracle.inputs import make
from attnoracle.oracle.judge import attention
from attnoracle.oracle.operators import operator
from attnoracle.reference import dense_mha


def _checks(judgement) -> set[str]:
    return {finding.check for finding in judgement.findings}


def test_the_exact_answer_in_bf16_passes(problem):
    judgement = problem().judge()
    assert not judgement.findings and not judgement.suspicions
    assert 0 < judgement.measures["element"] < 1 and judgement.measures["lse"] < 1


@pytest.mark.parametrize("empty", [False, True], ids=["all-seen", "some-see-nothing"])
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("output", ["out", "lse"])
def test_one_value_that_is_not_finite_never_passes(problem, output, special, empty):
    allowed = torch.ones(2, 12, 40, dtype=torch.bool)
    if empty:
        allowed[:, 3] = False
    made = problem(allowed=allowed)
    answer = {"out": made.out.bfloat16(), "lse": made.lse.float()}
    answer[output][5, 1] = special
    findings = made.judge(**answer).findings
    (finding,) = [one for one in findings if one.check == {"out": "structure", "lse": "lse"}[output]]
    assert finding.proved and "queries 5; heads 1" in finding.where


@pytest.mark.parametrize("said", [0.0, 7.5, math.inf], ids=str)
def test_nan_in_the_expected_output_is_no_wildcard(problem, normal, said):
    values = normal(2, 40, 8, seed=3)
    values[0, 4, 2] = math.nan
    made = problem(values=values)
    assert bool(made.out[:, 0, 2].isnan().all())
    assert not made.judge().findings, "NaN where NaN belongs is right"
    out = made.out.bfloat16()
    out[6, 0, 2] = said
    (finding,) = made.judge(out=out).findings
    assert (finding.check, finding.where) == ("structure", "1 of 192 elements; queries 6; heads 0; columns 2")


def test_a_nan_among_expected_values_hides_no_other_error(problem, normal):
    values = normal(2, 40, 8, seed=3)
    values[0, 4, 2] = math.nan
    made = problem(values=values)
    out = made.out.bfloat16()
    out[6, 1, 3] += 1.0
    assert "element" in _checks(made.judge(out=out))


def test_a_statistic_that_is_nan_raises(problem, monkeypatch):
    made = problem()
    right = attention.squares

    def broken(*arguments):
        sums = right(*arguments)
        sums.trace.fill_(math.nan)
        return sums

    monkeypatch.setattr(attention, "squares", broken)
    with pytest.raises(ArithmeticError, match="p-value came out as nan"):
        made.judge()


def test_one_wrong_element_is_seen_and_placed(problem):
    made = problem()
    out = made.out.bfloat16()
    out[7, 1, 5] += 0.5
    judgement = made.judge(out=out)
    element = next(one for one in judgement.findings if one.check == "element")
    assert element.proved and element.where == "1 of 192 elements; queries 7; heads 1; columns 5"
    worst = judgement.worst[0]
    assert (worst.output, worst.index) == ("out", (7, 1, 5))
    assert worst.ratio == pytest.approx(judgement.measures["element"], rel=1e-6) and worst.ratio > 1


@pytest.mark.parametrize(
    ("name", "change", "checks"),
    [
        ("scaled", lambda out, h: out * 1.01, {"bias", "global"}),
        ("noise in one head", lambda out, h: out + h * _noise(out), {"head"}),
    ],
    ids=["biased", "one-noisy-head"],
)
def test_errors_inside_every_element_budget_are_seen_together(problem, normal, name, change, checks):
    """Near-uniform weights make the elements' budgets wide against a systematic error."""
    made = problem(h=2, s=200, t=64, d=16, v=64)
    heads = torch.tensor([0.0, 1.0]).double().view(1, 2, 1)
    judgement = made.judge(out=change(made.out, heads).bfloat16())
    assert checks <= _checks(judgement)


def _noise(out):
    size = out.abs().mean() * 0.02
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double() * size


@pytest.mark.parametrize(
    ("field", "value", "out", "lse"),
    [
        ("empty_out", "nan", math.nan, -math.inf),
        ("empty_lse", "+inf", 0.0, math.inf),
        ("empty_lse", "nan", 0.0, math.nan),
    ],
    ids=["out-nan", "lse-plus-inf", "lse-nan"],
)
def test_a_declared_convention_for_empty_rows_is_demanded(problem, field, value, out, lse):
    allowed = torch.ones(2, 12, 40, dtype=torch.bool)
    allowed[:, 3] = False
    made = problem(allowed=allowed)
    answer = {"out": made.out.bfloat16(), "lse": made.lse.float()}
    assert _checks(made.judge(**answer, **{field: value})), "the usual convention is not the declared one"
    answer["out"][3], answer["lse"][3] = out, lse
    assert not made.judge(**answer, **{field: value}).findings
    assert _checks(made.judge(**answer)), "and the other way round"


def test_undefined_empty_rows_may_hold_anything_finite_or_not(problem):
    allowed = torch.ones(2, 12, 40, dtype=torch.bool)
    allowed[:, 3] = False
    made = problem(allowed=allowed)
    out, lse = made.out.bfloat16(), made.lse.float()
    out[3], lse[3] = math.nan, 17.0
    assert not made.judge(out=out, lse=lse, empty_out="undefined", empty_lse="undefined").findings


def test_the_base_of_the_lse_is_the_declared_one(problem):
    made = problem()
    two = (made.lse / math.log(2.0)).float()
    assert not made.judge(lse=two, lse_base="2").findings
    assert _checks(made.judge(lse=two)) == {"lse"}
    assert _checks(made.judge(lse_base="2")) == {"lse"}


def test_no_queries_and_no_keys_are_judged(problem):
    nothing = problem(queries=torch.zeros(2, 0, 16).double()).judge(power=True)
    assert not nothing.findings and not nothing.survivors
    made = problem(keys=torch.zeros(2, 0, 16).double(), values=torch.zeros(2, 0, 8).double())
    assert not made.judge().findings
    assert _checks(made.judge(out=made.out.bfloat16() + 1)) >= {"element"}


def test_a_nan_that_is_right_has_to_be_matched_and_hides_nothing():
    """A key that is seen holds NaN: its rows are NaN by right, and no statistic of the others becomes one."""
    case = Case.parse("dense_mha:tiny:h2:q8,8:k8,20:bf16:randn:contiguous:-:s0")
    arguments = make(case, load("tiny")).kwargs()
    arguments["k"][3, 0] = math.nan
    op = operator("dense_mha")

    def answer():
        wide = {name: x.double() if x.is_floating_point() else x for name, x in _tensors(arguments)}
        exact = dense_mha(**wide, **_options(arguments))
        return exact[0].bfloat16(), exact[1].float()

    assert op.judge(arguments, answer(), Contract(probabilities="fp32"), True).findings == []
    for spoil in ((slice(3, 8), 0, 0.0), (10, 1, math.nan)):
        out, lse = answer()
        out[spoil[0], spoil[1]] = spoil[2]
        found = op.judge(arguments, (out, lse), Contract(probabilities="fp32"), False).findings
        assert [finding.check for finding in found][:1] == ["structure"]
    out, lse = answer()
    out[12, 1] *= 1.5
    assert op.judge(arguments, (out, lse), Contract(probabilities="fp32"), False).findings


def _tensors(arguments):
    return [(name, value) for name, value in arguments.items() if isinstance(value, torch.Tensor)]


def _options(arguments):
    return {name: value for name, value in arguments.items() if not isinstance(value, torch.Tensor)}
