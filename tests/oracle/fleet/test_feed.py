"""The protocol of engines: losses, retries, and that everything is answered once."""

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.fleet.feed import Feed, drive
from attnoracle.oracle.fleet.protocol import Lost
from attnoracle.oracle.verdict import Verdict

CASE = Case(operator="merge_lse", geometry="tiny", heads=1, q_lens=(2,), k_lens=(2,))
PAIRS = [(CASE.with_seed(seed), "merge_lse/mine") for seed in range(4)]


class Scripted:
    """Answers each job with what its script says, one after another; then it passes. The newest job first."""

    device, slots, depth, tries = "cpu", 2, 4, 3

    def __init__(self, script):
        self.script = {job: list(answers) for job, answers in script.items()}
        self.jobs, self.puts = [], []

    def put(self, job, pair):
        self.jobs.append((job, pair))
        self.puts.append(job)

    def get(self, patience=None):
        if not self.jobs:
            return []
        job, (case, name) = self.jobs.pop()
        answers = self.script.get(job)
        passed = Verdict(case=case, implementation=name, status="PASS")
        return [(job, answers.pop(0) if answers else passed)]


def test_verdicts_come_in_the_order_of_the_pairs_and_are_reported_so():
    reported, done = [], []
    verdicts = drive(
        Scripted({}), PAIRS, on_result=lambda i, verdict: reported.append(i), on_done=lambda v: done.append(v.case.seed)
    )
    assert [verdict.case.seed for verdict in verdicts] == reported == [0, 1, 2, 3] and done == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("losses", "status", "puts"),
    [
        ([], "PASS", 1),
        ([Lost("node gone")] * 2, "PASS", 3),
        ([Lost("worker died", 1.5)] * 3, "ERROR", 3),
        ([Lost("no answer after 9 s", final=True)], "ERROR", 1),
    ],
)
def test_a_lost_worker_costs_a_retry_and_three_of_them_are_an_error(losses, status, puts):
    engine = Scripted({1: losses})
    verdicts = drive(engine, PAIRS, on_result=lambda i, verdict: None)
    assert [verdict.status for verdict in verdicts] == ["PASS", status, "PASS", "PASS"]
    assert engine.puts.count(1) == puts and engine.puts.count(2) == 1
    if status == "ERROR":
        assert losses[0].reason in verdicts[1].reason and verdicts[1].implementation == "merge_lse/mine"
        assert ("(3 times)" in verdicts[1].reason) == (len(losses) == 3)


def test_an_answer_that_comes_twice_counts_once():
    class Twice(Scripted):
        def get(self, patience=None):
            return [answer for answer in super().get() for _ in range(2)]

    feed = Feed(Twice({}))
    feed.put(7, PAIRS[0])
    assert [job for job, _ in feed.get()] == [7] and len(feed) == 0 and feed.get() == []


def test_what_the_check_itself_raises_is_raised():
    class Raising(Scripted):
        def get(self, patience=None):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(Raising({}), PAIRS, on_result=lambda i, verdict: None)
