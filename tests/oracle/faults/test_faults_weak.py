"""Verdicts in use elsewhere: each accepts a right kernel, rejects zeros, and escapes are as recorded."""

import pytest
import torch

from attnoracle.oracle.faults import FAULTS, VERDICTS, WEAK
from attnoracle.oracle.faults.escaped import recorded
from attnoracle.oracle.faults.escapes import CASES, REFERENCES, doubled, inputs_of, measure, outputs_of
from attnoracle.oracle.faults.simulated import KERNELS

SAMPLE = [fault for fault in FAULTS if fault.planted_in != "triton"][::12]


def test_the_verdicts_are_those_that_a_fault_may_escape():
    assert tuple(WEAK) == VERDICTS


@pytest.mark.parametrize("operator", CASES)
@pytest.mark.parametrize("verdict", WEAK)
def test_a_verdict_accepts_the_right_kernel_where_it_is_at_home(verdict, operator):
    case = CASES[operator]
    inputs = inputs_of(case)
    if verdict == "flashmla" and operator in ("dense_mha", "masked_mha", "sparse_mqa"):
        # Its tolerances are for outputs near zero: it rejects right bf16 kernels on plain normal inputs.
        inputs["v" if "v" in inputs else "kv"] *= 0.01
    expected = REFERENCES[operator](**doubled(inputs))

    assert WEAK[verdict](outputs_of(KERNELS[operator], inputs), expected, inputs)


@pytest.mark.parametrize("operator", [name for name in CASES if name != "topk_select"])
@pytest.mark.parametrize("verdict", WEAK)
def test_a_verdict_rejects_zeros_nan_and_wrong_shapes(verdict, operator):
    inputs = inputs_of(CASES[operator])
    expected = REFERENCES[operator](**doubled(inputs))
    zeros = [torch.zeros_like(x) for x in expected]

    assert not WEAK[verdict](zeros, expected, inputs)
    assert not WEAK[verdict]([x * torch.nan for x in zeros], expected, inputs)
    assert not WEAK[verdict]([x[:-1].repeat(3, *[1] * (x.dim() - 1)) for x in expected], expected, inputs)


@pytest.mark.parametrize("verdict", WEAK)
def test_a_verdict_on_selections_compares_scores_and_rejects_strays(verdict):
    inputs = inputs_of(CASES["topk_select"])
    (expected,) = REFERENCES["topk_select"](**doubled(inputs))

    assert WEAK[verdict]((expected,), (expected,), inputs)
    assert not WEAK[verdict]((torch.full_like(expected, 10**6),), (expected,), inputs)
    assert not WEAK[verdict]((torch.full_like(expected, -1),), (expected,), inputs)


def test_every_fault_has_been_measured():
    assert set(recorded()) == {fault.name for fault in FAULTS}


@pytest.mark.parametrize("fault", SAMPLE, ids=[fault.name for fault in SAMPLE])
def test_recorded_escapes_are_what_is_measured(fault):
    assert measure(fault) == fault.escapes
