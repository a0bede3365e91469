"""The boundary on a line whose verdicts are certain, and the smallest set of differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnoracle.oracle.bisect.delta import smallest
from attnoracle.oracle.bisect.search import boundary


@st.composite
def lines(draw):
    count = draw(st.integers(2, 300))
    change = draw(st.integers(1, count - 1))
    skipped = draw(st.sets(st.integers(1, count - 2), max_size=count)) if count > 2 else set()
    return count, change, skipped, draw(st.sampled_from(("good", "bad")))


@given(lines())
def test_it_finds_the_change_and_names_what_could_not_be_judged(line):
    count, change, skipped, first = line
    last = "bad" if first == "good" else "good"
    looked = []

    def look(point):
        looked.append(point)
        return "skip" if point in skipped else first if point < change else last

    found = boundary(count, first, look)
    assert found.before < change <= found.after
    assert set(found.between) <= skipped
    assert found.after - found.before == 1 + len(found.between)
    assert len(looked) == len(set(looked))


@pytest.mark.parametrize("count", [2, 3, 100, 1000])
def test_it_looks_about_as_often_as_the_logarithm(count):
    looked = []
    boundary(count, "good", lambda point: looked.append(point) or ("good" if point < count - 1 else "bad"))
    assert len(looked) <= count.bit_length()


def test_a_long_stretch_that_cannot_be_judged_costs_few_looks():
    looked = []

    def look(point):
        looked.append(point)
        return "skip" if 300 <= point < 700 else "good" if point < 800 else "bad"

    assert boundary(1000, "good", look).after == 800
    assert len(looked) < 30


def test_one_point_is_no_line():
    with pytest.raises(ValueError, match="at least two points, got 1"):
        boundary(1, "good", lambda point: "good")


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_exactly_the_differences_that_are_needed_are_left(drawn):
    count, needed = drawn
    names = [f"knob{n}" for n in range(count)]
    wanted = {f"knob{n}" for n in needed}
    seen = []

    def look(chosen):
        seen.append(chosen)
        return "bad" if wanted <= chosen else "good"

    assert set(smallest(names, look)) == wanted
    assert len(seen) == len(set(seen))


def test_without_one_of_them_the_failure_is_gone_even_if_two_sets_do():
    def look(chosen):
        return "bad" if {"a", "b"} <= chosen or {"c"} <= chosen else "good"

    found = smallest(["a", "b", "c", "d"], look)
    assert set(found) in ({"a", "b"}, {"c"})


def test_a_set_that_cannot_be_judged_counts_as_not_bad():
    def look(chosen):
        return "skip" if len(chosen) == 1 else "bad" if "a" in chosen else "good"

    assert "a" in smallest(["a", "b", "c"], look)
