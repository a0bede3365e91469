"""Campaigns without kernels: an engine in this process, a judge that looks at lengths, and causes made up."""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from attnoracle.oracle.campaign.corpus import Corpus
from attnoracle.oracle.campaign.guide import Guide, Mode
from attnoracle.oracle.campaign.night import Budget, Night
from attnoracle.oracle.campaign.space import Space, fitting_here
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.signature import signature
from attnoracle.oracle.verdict import Finding, Verdict

NAMES = ("dense_mha/mine", "sparse_mqa/mine")


def judged(case, name, device="cpu"):
    """Wrong where a request has q = k; closer to its budget the more keys there are."""
    if any(q == k for q, k in zip(case.q_lens, case.k_lens, strict=True)):
        found = (Finding("element", "3 elements are off", True),)
        return Verdict(case=case, implementation=name, status="FAIL", reason="off", findings=found)
    return Verdict(case=case, implementation=name, status="PASS", measures={"element": case.keys / 1000})


class HereEngine:
    """Answers in this process, the newest job first: another order than that of planning."""

    device, slots, depth, tries = "cpu", 1, 8, 3

    def __init__(self, judge=judged, stop_after=None):
        self.judge, self.stop_after, self.jobs, self.asked = judge, stop_after, [], []

    def put(self, job, pair):
        self.jobs.append((job, pair))

    def get(self, patience=None):
        if not self.jobs:
            return []
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        job, pair = self.jobs.pop()
        self.asked.append((job, pair))
        return [(job, self.judge(*pair, "cpu"))]


class HereAside:
    """Finds out at once that a failure needs no option."""

    def __init__(self):
        self.calls = []

    def call(self, function, *arguments):
        case, name = arguments[:2]
        self.calls.append((case, name))
        answer = Future()
        smaller = replace(Case.parse(case), options=())
        marks = signature(judged(smaller, name)).as_list()
        answer.set_result({"case": smaller.id, "signature": marks, "conclusion": "made up", "note": "", "files": {}})
        return answer

    def close(self):
        """Nothing is at work."""


@pytest.fixture
def space():
    return Space(NAMES, ("tiny",))


@pytest.fixture
def go(tmp_path, space):
    """Runs a night on the corpus of that name and returns it, closed as a night is."""

    def go(name, cases, *, engine=None, seed=0, mode=Mode.coverage, space=space):
        guide = Guide(space, seed, fitting_here(None), mode)
        with Corpus(tmp_path / name) as corpus:
            night = Night(corpus, guide, engine or HereEngine(), HereAside(), space.implementations)
            try:
                night.run(Budget(cases=cases))
            except KeyboardInterrupt:
                pass
            finally:
                night.close({"seed": seed})
        return night

    return go


@pytest.fixture
def engine():
    """Makes an engine in this process: ``engine(judge=…, stop_after=…)``."""
    return HereEngine


@pytest.fixture
def aside():
    """Makes what looks into failures at once."""
    return HereAside
