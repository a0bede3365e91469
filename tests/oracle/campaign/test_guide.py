"""What is drawn, what it covers, and what is chosen."""

from collections import Counter
from random import Random

import pytest

from attnoracle.oracle.campaign.classes import classes, residue
from attnoracle.oracle.campaign.groups import GROUPS, several
from attnoracle.oracle.campaign.guide import KEPT, ROUND, Guide, Mode
from attnoracle.oracle.campaign.mutate import mutated
from attnoracle.oracle.campaign.result import Result
from attnoracle.oracle.campaign.space import Space, drawn_case, fitting_here, usable
from attnoracle.oracle.case import Case
from attnoracle.oracle.errors import Unsupported
from attnoracle.oracle.faults.hidden import HIDDEN, Lengths, hidden
from attnoracle.oracle.fleet.pool import cost
from attnoracle.oracle.inputs import KINDS, OPTIONS
from attnoracle.oracle.suites import suite

FITS = fitting_here(None)


@pytest.mark.parametrize("operator", KINDS)
def test_the_whole_space_of_an_operator_is_drawn_and_most_of_it_can_be_made(operator):
    space = Space((f"{operator}/mine",), ("tiny",), largest=130)
    rng = Random(0)
    cases = [drawn_case(space, operator, rng, edges=bool(i % 2)) for i in range(600)]
    assert all(Case.parse(case.id) == case and cost(case) <= space.most for case in cases)
    assert max(length for case in cases for length in (*case.q_lens, *case.k_lens)) <= 130
    fitting = [case for case in cases if FITS((case, f"{operator}/mine"))]
    assert len(fitting) > 300
    assert {case.kind for case in fitting} == set(KINDS[operator])
    unwanted = {"hugerows"} | ({"poison-nan"} if operator in ("dense_mha", "masked_mha") else set())
    assert {option for case in fitting for option in case.options} == set(OPTIONS[operator]) - unwanted


def test_a_neighbour_differs_and_stays_inside():
    space, rng = Space(("sparse_mqa/mine",), ("tiny",), largest=100), Random(1)
    case = drawn_case(space, "sparse_mqa", rng, edges=True)
    near = [mutated(space, case, rng) for _ in range(200)]
    assert len({one.id for one in near}) > 60
    assert all(max(*one.q_lens, *one.k_lens) <= 100 for one in near)


def test_classes_of_a_case():
    case = Case(operator="sparse_mqa", geometry="tiny", heads=2, q_lens=(65, 0), k_lens=(65, 128), topk=64)
    found = classes(case)
    assert set(found) == set(GROUPS)
    assert {"q = k", "k = top-k + 1", "q%64 = 1", "k%128 = 0", "q = 0", "k fills 2 x 64"} <= found["lengths"]
    assert ("q = k", "k%64 = 1") in found["meets"] and ("q%16 = 0", "k%128 = 0") in found["meets"]
    assert ("q = k", "k%128 = 0") not in found["meets"], "they stand in different requests"
    assert "last without queries" in found["batch"]
    assert found["route"] == {"prefill", "prefill, indexer needed"}
    assert (residue(127, 64), residue(0, 64), several(0), several(3), several(9)) == ("-1", "0", "0", "3-4", "9-16")


def test_the_same_seed_plans_the_same_and_learning_changes_what_follows(space):
    one, other = (Guide(space, 3, FITS) for _ in range(2))
    assert one.plan(0) == other.plan(0)
    pairs = one.plan(1)
    assert pairs == other.plan(1) != Guide(space, 4, FITS).plan(1)
    for pair in pairs:
        one.learn(pair, Result("PASS", 0.5, None, 0.1, "cpu"))
    each = Counter(name for _, name in pairs)
    assert len(one.closest()) == sum(min(count, KEPT) for count in each.values())
    assert one.plan(2) != other.plan(2)
    assert sum(len(names) for groups in one.seen.values() for names in groups.values()) > 500


def test_of_closest_calls_the_largest_ratio_and_the_smallest_margin_are_kept(space):
    guide = Guide(space, 0, FITS)
    for i, pair in enumerate(guide.plan(0) + guide.plan(1)):
        guide.learn((pair[0], "topk_select/mine"), Result("PASS", None, (i + 1) / 100, 0.1, "cpu"))
        guide.learn(pair, Result("PASS", i / 100, None, 0.1, "cpu"))
        guide.learn(pair, Result("WEAK", 0.99, None, 0.1, "cpu"))
    calls = guide.closest()
    assert (calls[0].measure, calls[0].value) == ("ratio", 0.31)
    assert [call.value for call in calls if call.measure == "margin"] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]


def test_what_can_run_nowhere_is_left_out_or_said_at_once():
    fits = lambda pair: pair[1] != "dense_mha/eager"  # noqa: E731
    both = Space(("dense_mha/eager", "dense_mha/sdpa-math"), ("tiny",))
    assert usable(both, fits).implementations == ("dense_mha/sdpa-math",)
    with pytest.raises(Unsupported, match=r"campaign: nothing can run here: dense_mha/eager: "):
        usable(Space(("dense_mha/eager",), ("tiny",)), fits)


# Hidden faults: what they act on, and that no suite for every day draws it.


def test_no_case_of_the_quick_suite_has_the_lengths_of_a_hidden_fault():
    assert len({one.fault for one in HIDDEN}) == len(HIDDEN) == 10
    for one in HIDDEN:
        cases = [case for case in suite("quick") if case.operator == one.operator]
        assert cases and not any(one.acts_on(case) for case in cases), one.name


@pytest.mark.parametrize("one", HIDDEN, ids=lambda one: one.name)
def test_a_kernel_sees_the_lengths_that_the_case_has(one):
    from attnoracle.oracle.check import drawn

    space, rng = Space((f"{one.operator}/mine",), ("tiny",), largest=70), Random(5)
    for _ in range(2):
        case = drawn_case(space, one.operator, rng, edges=True)
        if FITS((case, f"{one.operator}/mine")) and case.queries:
            seen = Lengths.seen(one.operator, drawn(case, "cpu").kwargs(), case.topk)
            assert one.acts(seen) == one.acts_on(case)
            assert [q for q, _ in seen.requests] == [q for q, _ in Lengths.of(case).requests]


def test_coverage_comes_upon_hidden_lengths_where_random_cases_do_not():
    space = Space(tuple(f"hidden:{one.name}" for one in HIDDEN), ("tiny",))

    def met(mode, rounds):
        guide = Guide(space, 0, FITS, mode)
        pairs = [pair for number in range(rounds) for pair in guide.plan(number)]
        return {name for case, name in pairs if hidden(name.partition(":")[2]).acts_on(case)}

    rounds = 512 // ROUND
    guided, random = met(Mode.coverage, rounds), met(Mode.random, rounds)
    assert len(guided) >= 8 and len(random) <= 3
