"""Inputs without power: each wrong answer that would pass is named, and only such."""

import math

import pytest
import torch

NAMES = {
    "zeros",
    "mean of V",
    "heaviest key dropped",
    "next head's answer",
    "previous query's answer",
    "LSE in base 2",
}


def test_random_inputs_tell_everything_apart(problem, normal):
    made = problem(queries=normal(2, 12, 16, seed=1) * 4)
    judgement = made.judge(power=True)
    assert judgement.survivors == ()


def _uniform_weights(problem, normal):
    """No query differs from another by more than its budget, and no head."""
    values = normal(1, 40, 8, seed=3).expand(2, -1, -1)
    queries = normal(2, 12, 16, seed=1) * 2.0**-9
    return problem(queries=queries, keys=normal(1, 40, 16, seed=2).expand(2, -1, -1), values=values)


def test_uniform_weights_tell_neither_queries_nor_heads_apart(problem, normal):
    survivors = _uniform_weights(problem, normal).judge(power=True).survivors
    assert set(survivors) == {"mean of V", "next head's answer", "previous query's answer"}


def test_values_that_vanish_cannot_tell_zeros(problem, normal):
    """Signs cancel: the output is within its budget of zero, though it is not zero."""
    values = torch.ones(2, 2, 8).double()
    values[:, 1] = -1.0
    keys = torch.zeros(2, 2, 16).double()
    keys[:, 0, 0] = 2.0**-13
    made = problem(queries=torch.ones(2, 12, 16).double(), keys=keys, values=values)
    assert "zeros" in made.judge(power=True).survivors


def test_many_light_keys_cannot_tell_a_dropped_one(problem, normal):
    values = normal(1, 4000, 8, seed=3).mul(2.0**-6).add(1.0)
    made = problem(h=1, keys=normal(1, 4000, 16, seed=2) * 2.0**-9, values=values)
    judged = made.judge(power=True, lse_base=None)  # an LSE would tell
    assert "heaviest key dropped" in judged.survivors


def test_an_lse_near_zero_cannot_tell_its_base(problem, normal):
    keys = torch.zeros(1, 1, 16).double()
    keys[..., 0] = 2.0**-26
    made = problem(h=1, queries=torch.ones(1, 12, 16).double(), keys=keys, values=normal(1, 1, 8, seed=3))
    assert "LSE in base 2" in made.judge(power=True).survivors


@pytest.mark.parametrize("name", sorted(NAMES - {"LSE in base 2"}))
def test_a_wrong_answer_that_is_right_here_is_no_test(problem, name):
    """With one head, one query, one key and values 0 every wrong answer is the right one."""
    keys, values = torch.ones(1, 1, 16).double(), torch.zeros(1, 1, 8).double()
    judgement = problem(h=1, s=1, queries=torch.ones(1, 1, 16).double(), keys=keys, values=values).judge(power=True)
    assert name not in judgement.survivors


def test_power_is_tried_only_when_asked(problem, normal):
    assert _uniform_weights(problem, normal).judge(power=False).survivors == ()


def test_a_query_of_weight_makes_up_for_others(problem, normal):
    """One chunk with power is enough: the mutant dies there."""
    queries = normal(2, 12, 16, seed=1) * 2.0**-9
    queries[:, 4] = normal(2, 16, seed=9) * 4
    values = normal(2, 40, 8, seed=3)
    assert "mean of V" not in problem(queries=queries, values=values).judge(power=True).survivors


def test_the_names_are_those_that_a_reason_may_hold(problem, normal):
    made = problem()
    from attnoracle.oracle.judge.moments import moments
    from attnoracle.oracle.judge.power import mutants

    m = moments(made.chunk, made.scale, 2.0**-8, None)
    assert {mutant.name for mutant in mutants(m, made.chunk, lse=True, but=())} == NAMES
    assert {mutant.name for mutant in mutants(m, made.chunk, lse=False, but={"zeros"})} == NAMES - {
        "zeros",
        "LSE in base 2",
    }
    dropped = next(x for x in mutants(m, made.chunk, lse=True, but=()) if x.name == "heaviest key dropped")
    p = torch.softmax(made.scale * made.chunk.queries @ made.chunk.keys.mT, -1)
    p = p.scatter(-1, p.argmax(-1, keepdim=True), 0.0)
    expected = (p / p.sum(-1, keepdim=True)) @ made.chunk.values
    torch.testing.assert_close(dropped.out, expected)
    torch.testing.assert_close(dropped.lse, made.lse.T + p.sum(-1).log())
    assert math.isfinite(float(dropped.lse.max()))
