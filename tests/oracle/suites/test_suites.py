"""The suites: what they hold, that they can be built, and that every seed draws its own values."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.oracle.case import Case
from attnoracle.oracle.config import load
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.facts import facts
from attnoracle.oracle.guests.known import TOO_SLOW
from attnoracle.oracle.inputs import KINDS, make
from attnoracle.oracle.inputs.options import check as check_options
from attnoracle.oracle.suites import SUITES, fixture_cases, suite
from attnoracle.oracle.suites.full import TWINS
from attnoracle.oracle.suites.pairs import PAIRS, covering, pair_cases
from attnoracle.oracle.suites.reach import OWN_KINDS, REACH, is_reach

MAIN = ("dense_mha", "masked_mha", "sparse_mqa", "indexer_scores")


@pytest.fixture(scope="module")
def supported():
    """(case, implementation) of the quick suite that a CPU runs in the default check."""
    return [
        (case, one)
        for case in suite("quick")
        for one in IMPLEMENTATIONS
        if one.operator == case.operator
        and one.name not in TOO_SLOW
        and one.supports(facts(case, load(case.geometry), "cpu") | {"interpreted": True}) is None
    ]


@pytest.mark.parametrize("name", SUITES)
def test_every_case_can_be(name):
    cases = suite(name)
    assert cases
    for case in cases:
        check_options(case, load(case.geometry))
        assert Case.parse(case.id) == case


@pytest.mark.parametrize("name", SUITES)
def test_ids_are_distinct(name):
    twice = [id_ for id_, count in Counter(case.id for case in suite(name)).items() if count > 1]
    assert twice == []


@pytest.mark.parametrize("name", SUITES)
def test_a_seed_decides_a_suite(name):
    assert suite(name, 7) == suite(name, 7)
    first, other = suite(name), suite(name, 7)
    assert [case.with_seed(0) for case in first] == [case.with_seed(0) for case in other]
    assert all(a.seed + 7 == b.seed for a, b in zip(first, other, strict=True))


def test_the_full_suite_holds_the_quick_one_and_every_kind():
    full = suite("full")
    assert full[: len(suite("quick"))] == suite("quick")
    assert {(case.operator, case.kind) for case in full} == {
        (op, kind) for op, kinds in KINDS.items() for kind in kinds
    }


def test_the_full_suite_reaches_past_what_small_batches_touch():
    full = suite("full", 7)
    for operator, rows in REACH.items():
        for name in rows:
            assert [case for case in full if case.operator == operator and is_reach(case, name)], (operator, name)
    assert max(len(case.q_lens) for case in full) > 128
    assert max(case.topk for case in full) == 2048 and max(case.keys for case in full) > 65536


def test_any_two_choices_meet_in_a_row_and_rows_are_few():
    for operator, (_, _, _, lists) in PAIRS.items():
        rows = list(covering(lists))
        met = {(i, row[i], j, row[j]) for row in rows for i in range(len(row)) for j in range(i)}
        wanted = sum(len(lists[i]) * len(lists[j]) for i in range(len(lists)) for j in range(i))
        assert len(met) == wanted, operator
        longest = sorted((len(choices) for choices in lists), reverse=True)
        assert longest[0] * longest[1] <= len(rows) <= 1.7 * longest[0] * longest[1] + 2, operator


def test_the_pairs_are_in_the_full_suite():
    full = set(suite("full", 3))
    assert set(pair_cases(4003)) <= full
    assert {case.operator for case in pair_cases(0)} == set(PAIRS)


@pytest.mark.parametrize("operator", TWINS)
def test_what_is_left_out_for_a_twin_would_be_the_same_numbers(operator):
    case = next(case for case in suite("quick") if (case.operator, case.geometry) == (operator, "glm-5"))
    twin = replace(case, geometry="glm-5.3-flash")
    one, other = (make(each, load(each.geometry)) for each in (case, twin))
    assert one.options == other.options
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor.nan_to_num(), other.tensors[name].nan_to_num())


def test_the_kinds_of_the_reach_have_a_row_there():
    for operator, kinds in OWN_KINDS.items():
        assert set(kinds) <= {row.kind for row in REACH[operator].values()} & set(KINDS[operator])


def test_the_production_suite_holds_the_shapes_that_engines_run():
    assert any(
        (case.operator, case.queries, case.heads, case.topk, case.keys) == ("sparse_mqa", 4096, 128, 2048, 65536)
        for case in suite("production")
    )


def test_the_quick_suite_is_enough_without_a_gpu(supported):
    judged = {(case.id, one.name) for case, one in supported}
    assert len(judged) >= 200
    assert {case.layout for case, _ in supported} == {"contiguous", "offset", "strided"}
    for operator in MAIN:
        mine = [(case, one) for case, one in supported if one.operator == operator]
        assert len({one.name for _, one in mine}) >= 2
        assert {"deepseek-v3.2", "glm-5"} <= {case.geometry for case, _ in mine}


def test_the_quick_suite_has_real_head_dims():
    assert "tiny" not in {case.geometry for case in suite("quick")}


def test_cases_that_once_failed_are_distinct_and_can_be():
    cases = fixture_cases()
    assert cases and len({case.id for case in cases}) == len(cases)
    for case in cases:
        check_options(case, load(case.geometry))


def test_an_unknown_suite_offers_the_nearest():
    with pytest.raises(BadInput, match="unknown suite 'quik'; nearest: quick"):
        suite("quik")
