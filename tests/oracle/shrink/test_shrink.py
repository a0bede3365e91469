"""Shrinking: the smallest case that fails in the same way, with planted faults as the failing kernels."""

from dataclasses import replace
from itertools import count

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.again import apart, here
from attnoracle.oracle.cause.signature import Mark, Signature, from_list, signature
from attnoracle.oracle.check import check
from attnoracle.oracle.config import load
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import fault
from attnoracle.oracle.inputs import make
from attnoracle.oracle.shrink import Trials, shrink
from attnoracle.oracle.shrink.moves import MOVES, ladder
from attnoracle.oracle.verdict import Finding, Verdict

DENSE = Case.parse("dense_mha:deepseek-v3.2:h2:q37,1,64:k37,130,64:bf16:randn:contiguous:-:s0")
SPARSE = Case.parse("sparse_mqa:deepseek-v3.2:h16:q4,3:k100,20:top64:bf16:randn:strided:duplicates:s5")


def _shrunk(name, case, **options):
    sequence = options.pop("sequence", False)
    return shrink(case, Trials(here(fault(name).implementation, "cpu", sequence=sequence)), **options)


@pytest.mark.parametrize(
    ("name", "case", "expected"),
    [
        ("tile-edge-key-dropped", DENSE, "dense_mha:tiny:h1:q1:k64:bf16:grid:contiguous:ids-1:s0"),
        ("lse-base-2", SPARSE, "sparse_mqa:tiny:h1:q1:k1:top1:bf16:grid:contiguous:ids-1:s5"),
        ("heads-rolled", DENSE, "dense_mha:tiny:h2:q1:k1:bf16:grid:contiguous:ids-1:s0"),
    ],
)
def test_a_fault_keeps_what_it_needs_and_nothing_else(name, case, expected):
    found = _shrunk(name, case)
    assert found.case.id == expected
    assert found.verdict.bad and found.signature.same(signature(found.verdict))


def test_an_option_that_the_fault_needs_stays():
    found = _shrunk("duplicates-collapsed", SPARSE)
    assert "duplicates" in found.case.options and found.case.topk == 2 and found.case.heads == 1
    assert Case.parse(found.fixture().splitlines()[-1]) == found.case


def test_a_request_keeps_its_values_when_the_others_go():
    found = _shrunk("tile-edge-key-dropped", DENSE)
    requests = [step for step in found.steps if step.axis == "requests"]
    assert requests[0].case.options == ("ids-1",)
    kept, whole = (make(case, load(case.geometry)).tensors["k"] for case in (requests[0].case, DENSE))
    assert kept.equal(whole[37 : 37 + 130])


def test_a_failure_of_another_kind_is_put_aside_and_not_followed():
    one = Verdict(case=DENSE, implementation="x/y", status="FAIL", findings=(Finding("lse", "an LSE is off", True),))
    other = replace(one, findings=(Finding("structure", "NaN where the reference has another value", True),))

    def run(case):
        return one if len(case.q_lens) > 1 else replace(other, case=case)

    found = shrink(DENSE, Trials(run))
    assert len(found.case.q_lens) == 2
    assert [signature(slip).marks[0].check for slip in found.slips] == ["structure"]


def test_what_does_not_fail_is_refused():
    with pytest.raises(BadInput, match="does not fail"):
        shrink(DENSE, Trials(lambda case: Verdict(case=case, implementation="x/y", status="PASS")))


def test_a_flaky_failure_is_repeated_until_the_confidence_is_there():
    turns = count()
    fail = (Finding("rerun", "out differs between two runs", True),)

    def run(case):
        bad = next(turns) % 3 == 0 and case.keys >= 8
        return Verdict(case=case, implementation="x/y", status="FAIL" if bad else "PASS", findings=fail if bad else ())

    case = Case.parse("dense_mha:tiny:h2:q4:k16:bf16:randn:contiguous:-:s0")
    found = shrink(case, Trials(run, confidence=0.99), flaky=True)
    assert 0.2 < found.rate < 0.5
    assert (1 - found.rate / 2) ** found.patience <= 0.01
    assert (found.case.keys, found.case.queries, found.case.heads) == (8, 1, 1)


def test_a_fault_of_later_calls_shrinks_in_sequence():
    case = Case.parse("topk_select:deepseek-v3.2:h1:q6,2:k50,40:top16:bf16:randn:contiguous:-:s0")
    assert not check(case, fault("selection-cached-by-shape").implementation()).bad
    found = _shrunk("selection-cached-by-shape", case, sequence=True)
    assert found.case.queries <= 3 and found.verdict.findings[0].check == "sequence"


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000])
def test_a_ladder_goes_up_to_what_is_there(size):
    steps = list(ladder(size, 1))
    assert steps == sorted(set(steps)) and all(1 <= step < size for step in steps)
    assert size == 1 or (steps[0] == 1 and steps[-1] == size - 1)


@pytest.mark.parametrize(("axis", "move"), MOVES)
def test_every_move_is_smaller_or_simpler(axis, move):
    case = replace(SPARSE, options=("duplicates", "highrows"))
    for smaller in move(case):
        assert smaller != case
        assert smaller.queries <= case.queries and smaller.keys <= case.keys and smaller.heads <= case.heads


def test_signatures_of_parts_and_of_other_failures():
    whole = Signature((Mark("lse", "lse", ""), Mark("values", "out", "")))
    assert whole.same(Signature((Mark("lse", "lse", ""),)))
    assert not whole.same(Signature((Mark("memory", "out", ""),)))
    assert not whole.same(Signature(()))
    assert from_list(whole.as_list()) == whole


def test_a_kernel_that_dies_is_shrunk_in_processes_of_its_own():
    case = Case.parse("merge_lse:tiny:h1:q2:k2:bf16:randn:contiguous:-:s0")
    with apart("fault:merge-by-mean", "cpu", 60.0) as run:
        assert run(case).bad
