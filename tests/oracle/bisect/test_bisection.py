"""The whole bisection of a line: ends, direction, signatures, flakiness, journal."""

from __future__ import annotations

import json

import pytest

from attnoracle.oracle.bisect.bisection import bisect
from attnoracle.oracle.bisect.journal import NAME, Journal
from attnoracle.oracle.bisect.look import Settings
from attnoracle.oracle.errors import BadInput


def _run(axis, good="p0", bad=None, folder=None, **settings):
    journal = Journal(folder, {"axis": axis.name})
    return bisect(axis, good, bad or axis.points[-1], journal, Settings(**settings))


def test_a_regression_and_a_fix(line):
    found = _run(line(["good"] * 6 + ["bad"] * 4))
    assert (found.direction, found.last, found.first) == ("regression", "p5", "p6")
    assert found.commands == ("show p5", "show p6")
    assert found.signature == "FAIL element out"
    fixed = _run(line(["bad"] * 3 + ["good"] * 7), good="p9", bad="p0")
    assert (fixed.direction, fixed.last, fixed.first) == ("fix", "p2", "p3")


def test_both_sides_of_the_boundary_are_seen_twice(line):
    axis = line(["good"] * 6 + ["bad"] * 4)
    _run(axis)
    assert axis.asked.count("p5") == axis.asked.count("p6") == 2


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["good", "good", "good"], "do not differ as they are called .*bad p2: 0 of 2 failed"),
        (["bad", "good", "bad"], "do not differ as they are called .*good p0: 2 of 2 failed"),
        (["bad", "good", "good"], "other way round: exchange --good and --bad"),
        (["skip", "good", "bad"], "the good end p0 cannot be judged: no compiler"),
        (["good", "good", "skip"], "the bad end p2 cannot be judged: no compiler"),
    ],
)
def test_ends_that_are_not_what_they_are_called_are_refused(line, labels, message):
    with pytest.raises(BadInput, match=message):
        _run(line(labels))


def test_points_that_are_none_are_refused(line):
    with pytest.raises(BadInput, match="'p9' is not among its 3 points: p0, p1, p2"):
        _run(line(["good", "good", "bad"]), good="p9")
    with pytest.raises(BadInput, match="same point"):
        _run(line(["good", "bad"]), bad="p0")


def test_another_failure_is_a_skip_and_not_a_side(line):
    axis = line(["good"] * 4 + ["bad"] * 6, signatures={"p4": "ERROR ImportError", "p5": "ERROR ImportError"})
    found = _run(axis)
    assert (found.last, found.first, found.between) == ("p3", "p6", ("p4", "p5"))
    assert any("another failure: ERROR ImportError" in look.detail for _, look in found.evidence)


def test_a_good_end_with_another_failure_is_refused(line):
    with pytest.raises(BadInput, match="the good end p0 cannot be judged: ERROR"):
        _run(line(["bad", "good", "bad"], signatures={"p0": "ERROR ImportError"}))


def test_a_contradiction_at_the_boundary_turns_the_search_into_a_noisy_one(line):
    """A point that fails every third time looks good at first."""
    sometimes = [*(["good"] * 5), *([lambda n: "bad" if n % 3 else "good"] * 4), "bad"]
    found = _run(line(sometimes))
    assert found.first == "p5"
    assert found.flaky
    assert found.confidence >= 0.99


def test_flaky_ends_that_do_not_differ_are_refused(line):
    with pytest.raises(BadInput, match="fail about as often as each other"):
        _run(line([lambda n: "bad" if n % 2 else "good"] * 5), flaky=True)


def test_it_goes_on_from_its_journal(line, tmp_path):
    labels = ["good"] * 40 + ["bad"] * 60
    whole = line(labels)
    expected = _run(whole, folder=tmp_path / "whole")
    lines = (tmp_path / "whole" / NAME).read_text().splitlines(keepends=True)
    part = tmp_path / "part"
    part.mkdir()
    (part / NAME).write_text("".join(lines[:6]) + lines[6][:10])  # stopped in the middle of a line
    rest = line(labels)
    found = _run(rest, folder=part)
    assert (found.last, found.first, found.looks) == (expected.last, expected.first, expected.looks)
    assert len(rest.asked) == len(whole.asked) - 5
    records = [json.loads(text) for text in (part / NAME).read_text().splitlines()]
    assert records[-1]["found"]["first"] == "p40"


def test_the_journal_of_another_bisection_is_refused_and_kept(line, tmp_path):
    Journal(tmp_path, {"axis": "commits"})
    before = (tmp_path / NAME).read_text()
    with pytest.raises(BadInput, match=r"journal of another bisection \(axis was 'commits'"):
        Journal(tmp_path, {"axis": "points"})
    (tmp_path / "more").mkdir()
    Journal(tmp_path / "more", {"axis": "commits", "probe": {"device": "cpu", "timeout": 600.0}})
    with pytest.raises(BadInput, match=r"another bisection \(probe.timeout was 600.0, now 20.0\); name"):
        Journal(tmp_path / "more", {"axis": "commits", "probe": {"device": "cpu", "timeout": 20.0}})
    (tmp_path / NAME).write_text("not json\n")
    with pytest.raises(BadInput, match="expected the journal of a bisection"):
        Journal(tmp_path, {"axis": "points"})
    (tmp_path / NAME).write_text("somebody's, without an end")
    with pytest.raises(BadInput, match="expected the journal of a bisection"):
        Journal(tmp_path, {"axis": "points"})
    assert (tmp_path / NAME).read_text() == "somebody's, without an end"
    assert before
