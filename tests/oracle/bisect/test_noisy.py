"""The boundary on a line whose verdicts are flaky."""

from __future__ import annotations

import random

import numpy as np
import pytest

from attnoracle.oracle.bisect.noisy import END_LOOKS, Tally, distinct, noisy_boundary, posterior


def _search(rng, count, change, first, *, wrong, skipped=(), most=2000, confidence=0.99):
    """One simulated bisection: a point's verdict is the wrong one with chance ``wrong``."""
    last = {"good": "bad", "bad": "good"}[first]

    def look(point):
        if point in skipped:
            return "skip"
        label, other = (first, last) if point < change else (last, first)
        return other if rng.random() < wrong else label

    tally = Tally.of(count)
    for end in (0, count - 1):
        for _ in range(END_LOOKS):
            tally.add(end, look(end))
    return noisy_boundary(tally, first, look, confidence=confidence, most=most)


@pytest.mark.parametrize(("wrong", "first"), [(0.05, "good"), (0.3, "good"), (0.3, "bad")])
def test_it_is_right_as_often_as_it_says(wrong, first):
    rng = random.Random(7)
    right = looks = 0
    runs = 25
    for _ in range(runs):
        change = rng.randrange(1, 50)
        found = _search(rng, 50, change, first, wrong=wrong)
        assert found.confidence >= 0.99
        right += found.boundary.after == change
        looks += found.looks
    # A chance of 0.99 a run leaves 4 or more misses of 25 to one series in ten thousand.
    assert runs - right <= 3
    assert looks / runs < (110 if wrong < 0.1 else 260)


def test_failures_that_only_sometimes_show_are_found():
    """A race: good never fails, bad fails one time in three."""
    rng = random.Random(3)
    for change in (1, 60, 150, 199):

        def look(point, change=change):
            return "bad" if point >= change and rng.random() < 1 / 3 else "good"

        tally = Tally.of(200)
        for end in (0, 199):
            for _ in range(END_LOOKS):
                tally.add(end, look(end))
        found = noisy_boundary(tally, "good", look, confidence=0.99, most=2000)
        assert found.boundary.after == change


def test_what_only_skipped_points_tell_apart_is_one_answer():
    found = _search(random.Random(5), 100, 47, "good", wrong=0.1, skipped=set(range(40, 60)))
    assert (found.boundary.before, found.boundary.after) == (39, 60)
    assert found.boundary.between == tuple(range(40, 60))


def test_a_budget_that_runs_out_is_told_by_the_confidence():
    found = _search(random.Random(1), 200, 90, "good", wrong=0.3, most=3)
    assert found.confidence < 0.99
    assert found.looks == 2 * END_LOOKS + 3


def test_the_posterior_is_that_of_the_definition():
    """Against the product of the two marginals, summed by brute force over a grid of chances."""
    tally = Tally.of(4)
    for point, label in [(0, "good"), (0, "good"), (1, "bad"), (2, "bad"), (2, "good"), (3, "bad"), (3, "bad")]:
        tally.add(point, label)
    grid = (np.arange(20000) + 0.5) / 20000
    weight = []
    for at in range(3):
        product = 1.0
        for points in (slice(0, at + 1), slice(at + 1, 4)):
            n, f = tally.looks[points].sum(), tally.failures[points].sum()
            product *= float(np.mean(grid**f * (1 - grid) ** (n - f)))
        weight.append(product)
    assert posterior(tally, "good") == pytest.approx(np.array(weight) / sum(weight), rel=1e-4)


def test_ends_that_fail_alike_are_not_distinct():
    alike = ["bad", "good"] * 12
    assert not distinct(alike, alike)
    assert distinct(["good"] * 24, ["bad"] * 12 + ["good"] * 12)
    assert not distinct(["bad"] * 24, ["good"] * 24), "the other way round"
