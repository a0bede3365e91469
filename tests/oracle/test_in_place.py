"""Operators that write in place: the cache is judged whole, inputs are made anew, and nothing else may change."""

from __future__ import annotations

import pytest

from attnoracle import reference
from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.operators import OPERATORS

CASE = Case.parse("write_cache:tiny:h1:q5,3:k20,9:bf16:randn:contiguous:fp8_ds_mla+padding+page-16:s3")
INDEX = Case.parse("write_index:tiny:h1:q5,3:k20,9:bf16:randn:strided:page-16:s3")


def of(function, case: Case = CASE, **contract) -> Implementation:
    return Implementation(
        f"{case.operator}/made-up", Contract(lse_base=None, **contract), lambda facts: None, lambda: function
    )


def after(change, operator: str = "write_cache"):
    """The right writer, and then ``change`` of its keywords' tensors."""

    def write(**a):
        getattr(reference, operator)(**a)
        change(a)
        return ()

    return write


def test_operators_that_write_name_what_they_write():
    assert {op.name: op.writes for op in OPERATORS if op.writes} == {
        "write_cache": ("cache",),
        "write_index": ("pages",),
    }
    assert all(op.outputs == op.writes for op in OPERATORS if op.writes)


@pytest.mark.parametrize("case", [CASE, INDEX], ids=lambda case: case.operator)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_right_writer_passes_and_may_return_none(case, sequence):
    right = getattr(reference, case.operator)
    assert check(case, of(right, case), sequence=sequence).status == "PASS"

    def silent(**a):
        right(**a)

    assert check(case, of(silent, case)).status == "PASS"


def test_a_stray_byte_anywhere_in_the_cache_is_found():
    def stray(a):
        a["cache"][-1, -1, -1] ^= 1

    verdict = check(CASE, of(after(stray)))
    assert verdict.status == "FAIL" and verdict.findings[0].check == "exact"
    assert "1 of" in verdict.reason and "pages 5; places 15; elements 99" in verdict.findings[0].where


def test_another_input_may_not_change():
    verdict = check(CASE, of(after(lambda a: a["slots"].clamp_(min=0))))
    assert verdict.status == "FAIL" and verdict.reason == "changed its inputs: slots"


def test_a_writer_returns_nothing():
    verdict = check(CASE, of(lambda cache, **a: (cache,)))
    assert verdict.status == "FAIL" and "expected nothing" in verdict.reason


def test_a_writer_that_reads_what_was_there_is_seen_on_the_second_run():
    """It adds to the old codes: both runs start from the same cache, so that they agree, and both are wrong."""

    def add(a):
        a["cache"][..., 0] += 1

    verdict = check(CASE, of(after(add)))
    assert [finding.check for finding in verdict.findings] == ["exact"]


def test_a_writer_that_remembers_its_first_slots_is_found_by_a_later_call():
    kept = []

    def write(**a):
        kept.append(a["slots"].clone())
        reference.write_cache(
            **{**a, "slots": kept[0] if len(kept) > 2 and len(kept[0]) == len(a["slots"]) else a["slots"]}
        )
        return ()

    assert check(CASE, of(write)).status == "PASS"
    kept.clear()
    verdict = check(CASE, of(write), sequence=True)
    assert verdict.status == "FAIL" and verdict.findings[0].check == "sequence"


def test_a_write_into_the_gap_between_rows_is_damage():
    strided = Case.parse(CASE.id.replace("contiguous", "strided"))

    def gap(a):
        cache = a["cache"]
        cache.as_strided((1,), (1,), cache.storage_offset() + cache.shape[2]).fill_(0)

    verdict = check(strided, of(after(gap)))
    assert verdict.status == "FAIL" and verdict.findings[0].check == "memory"
