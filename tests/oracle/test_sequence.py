"""Later calls on the same memory: right kernels pass; what outlives its call is seen, where that is asked for."""

import pytest

from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.faults import FAULTS, fault
from attnoracle.oracle.faults.simulated import KERNELS, SIMULATED
from attnoracle.oracle.fleet.pool import cost
from attnoracle.oracle.suites import suite

STATEFUL = [one.name for one in FAULTS if "sequence" in one.options]


def first_case(operator) -> Case:
    return next(case for case in suite("quick") if case.operator == operator)


def right(operator, kernel=None) -> Implementation:
    return Implementation(f"{operator}/right", SIMULATED, lambda facts: None, lambda: kernel or KERNELS[operator])


@pytest.mark.parametrize("operator", KERNELS)
def test_a_right_kernel_passes(operator):
    cases = [case for case in suite("quick") if (case.operator, case.geometry) == (operator, "deepseek-v3.2")]
    for case in sorted(cases, key=cost)[:2]:
        assert check(case, right(operator), sequence=True).status == "PASS", case.id


@pytest.mark.parametrize("name", STATEFUL)
def test_what_outlives_its_call_is_seen_by_this_check_alone(name):
    stateful, case = fault(name), first_case(fault(name).operator)

    assert check(case, stateful.implementation()).status == "PASS"
    verdict = check(case, stateful.implementation(), sequence=True)
    assert verdict.status == "FAIL" and {finding.check for finding in verdict.findings} == {"sequence"}


def test_a_buffer_that_all_calls_share_spoils_the_first_answer():
    verdict = check(first_case("merge_lse"), fault("output-buffer-shared").implementation(), sequence=True)
    assert verdict.reason == "a later call changed the first answer's out"


def test_a_kernel_that_raises_when_it_is_called_again_is_an_error():
    calls = []

    def once_too_often(**inputs):
        calls.append(inputs)
        if len(calls) > 3:
            raise RuntimeError("out of workspaces")
        return KERNELS["dense_mha"](**inputs)

    verdict = check(first_case("dense_mha"), right("dense_mha", once_too_often), sequence=True)
    assert (verdict.status, verdict.reason) == ("ERROR", "on a second call: RuntimeError: out of workspaces")


def test_a_later_answer_of_another_shape_is_a_finding():
    calls = []

    def shrinking(**inputs):
        calls.append(inputs)
        out, lse = KERNELS["dense_mha"](**inputs)
        return (out, lse) if len(calls) <= 3 else (out[:1], lse)

    verdict = check(first_case("dense_mha"), right("dense_mha", shrinking), sequence=True)
    assert verdict.status == "FAIL" and "returned another shape" in verdict.findings[0].message


@pytest.mark.parametrize("operator", ["dense_mha", "sparse_mqa", "merge_lse"])
def test_a_workspace_that_a_longer_call_left_full_is_seen(operator):
    kept = []

    def last_row_of_a_longer_call(**inputs):
        out, *rest = KERNELS[operator](**inputs)
        out = out.clone()
        if kept and len(kept[-1]) > len(out):
            out[-1] = kept[-1][len(out) - 1]
        kept.append(out.clone())
        return out, *rest

    case = next(case for case in suite("quick") if case.operator == operator and max(case.q_lens) > 1)
    verdict = check(case, right(operator, last_row_of_a_longer_call), sequence=True)
    assert {finding.check for finding in verdict.findings} == {"sequence"}
