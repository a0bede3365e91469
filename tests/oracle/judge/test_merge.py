"""The judge of LSE merges: the formula in working precision, empty sides, and inputs without power."""

import math

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.oracle.judge import merge
from attnoracle.reference import merge_lse

CONTRACT = Contract(probabilities="fp32")


@pytest.fixture
def sides(normal):
    def make(s=9, h=3, v=8, dtype=torch.float32, spread=2.0):
        return {
            "out_a": normal(s, h, v, seed=1).to(dtype),
            "lse_a": (normal(s, h, seed=2) * spread + 4).float(),
            "out_b": normal(s, h, v, seed=3).to(dtype),
            "lse_b": (normal(s, h, seed=4) * spread + 4).float(),
        }

    return make


def _exact(given):
    return merge_lse(**{name: x.double() for name, x in given.items()})


def _judge(given, out=None, lse=None):
    right, right_lse = _exact(given)
    out = right.to(given["out_a"].dtype) if out is None else out
    return merge.judge(out, right_lse.float() if lse is None else lse, CONTRACT, **given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_right_merge_passes(sides, dtype):
    judgement = _judge(sides(dtype=dtype))
    assert not judgement.findings and judgement.survivors == ()


def test_a_merge_in_place_of_one_side_passes_and_one_ten_times_as_rough_does_not(sides):
    # ring attention: out_a - sigmoid(lse_b - lse_a) (out_a - out_b), in fp32
    given = sides(spread=30.0)
    weight = torch.sigmoid(given["lse_b"] - given["lse_a"])[..., None]
    moved = weight * (given["out_a"] - given["out_b"])
    assert _judge(given, out=given["out_a"] - moved).findings == []
    rough = given["out_a"] - moved * (1 + 1e-5)
    assert _judge(given, out=rough).findings


def test_weights_from_the_rounded_lse_pass(sides):
    """exp(a - lse), as combine kernels compute it, errs by the rounding of an LSE of 70."""
    given = sides(s=400, spread=60.0)
    lse = torch.logaddexp(given["lse_a"], given["lse_b"])
    out = sum((given[f"lse_{x}"] - lse).exp()[..., None] * given[f"out_{x}"] for x in "ab")
    judgement = _judge(given, out, lse)
    assert not judgement.findings and judgement.measures["element"] > 0.2


@pytest.mark.parametrize("said", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("output", ["out", "lse"])
def test_what_is_not_finite_never_passes(sides, output, said):
    given = sides()
    out, lse = (x.float() for x in _exact(given))
    {"out": out, "lse": lse}[output][4, 1] = said
    (finding,) = _judge(given, out, lse).findings
    assert finding.check == "structure" and finding.where.startswith(f"{8 if output == 'out' else 1} of ")


def test_nan_in_the_expected_output_is_no_wildcard(sides):
    given = sides()
    given["out_a"][4, 1, 2] = math.nan
    out = _exact(given)[0].float()
    assert not _judge(given, out).findings
    out[4, 1, 2] = 0.0
    assert [one.check for one in _judge(given, out).findings] == ["structure"]


def test_an_empty_side_may_hold_nan_and_two_empty_sides_give_nothing(sides):
    given = sides()
    given["lse_a"][2], given["out_a"][2] = -math.inf, math.nan
    given["lse_a"][5], given["lse_b"][5] = -math.inf, -math.inf
    out, lse = (x.float() for x in _exact(given))
    assert not out[5].any() and bool(lse[5].isneginf().all())
    assert not _judge(given, out, lse).findings
    out[5] = math.nan
    assert [one.check for one in _judge(given, out, lse).findings] == ["structure"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: (g["out_a"] + g["out_b"]) / 2,
        lambda g: merge_lse(g["out_b"], g["lse_a"], g["out_a"], g["lse_b"])[0],
        lambda g: merge_lse(g["out_a"], g["lse_a"] * 0.99, g["out_b"], g["lse_b"])[0],
        lambda g: _exact(g)[0] * (1 + 2.0**-15),
    ],
    ids=["mean", "exchanged", "lse-off", "off-by-2^-15"],
)
def test_a_wrong_output_fails(sides, wrong):
    given = sides()
    assert "element" in {one.check for one in _judge(given, wrong(given).float()).findings}


def test_a_wrong_lse_fails(sides):
    given = sides()
    assert [one.check for one in _judge(given, lse=torch.maximum(given["lse_a"], given["lse_b"])).findings] == ["lse"]


def test_one_sided_weights_cannot_tell_that_side_alone(sides):
    given = sides(spread=0.0)
    given["lse_b"] -= 18.0
    assert _judge(given).survivors == ("first side",)


def test_nothing_to_merge(sides):
    judgement = _judge(sides(s=0))
    assert not judgement.findings and judgement.survivors == ()
