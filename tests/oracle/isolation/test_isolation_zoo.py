"""Hostile kernels: each costs its own verdicts, is reported as itself, and changes nothing for its neighbours."""

import time

import pytest
import torch

from attnoracle.oracle.calling.globals import GlobalState
from attnoracle.oracle.case import Case
from attnoracle.oracle.fleet.confinement import Confinement
from attnoracle.oracle.fleet.pool import run

CASE = Case.parse("merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s0")
OTHER = CASE.with_seed(1)
#: What each comes to, and words of its reason; those that end their process are seen in isolation only.
CONFINED = {
    "segfault": ("ERROR", "signal 11 (SIGSEGV)"),
    "swollen": ("ERROR", "worker stopped"),
    "leaves": ("ERROR", "worker died: exit code 0"),
    "closes": ("ERROR", "worker"),
    "aborts": ("ERROR", "signal 6 (SIGABRT); its last words: some kernel: Assertion `i < n` failed."),
}
ANYWHERE = {
    "fine": ("PASS", ""),
    "threads": ("FAIL", "changed what runs: the thread 'spinner' was left behind"),
    "writes": ("FAIL", "changed its inputs: out_a"),
    "shrinks": ("FAIL", "out_a: its memory was resized to 0 bytes"),
    "prints": ("PASS", ""),
    "patches": ("FAIL", "changed torch.isfinite"),
    "views": ("FAIL", "off by"),
    "remembers": ("FAIL", ""),
    "draws": ("FAIL", "changed the state of Python's random generator"),
    "dtype": ("FAIL", "changed torch's default dtype"),
    "switches": ("FAIL", "changed torch's default device"),
    "moves": ("FAIL", "changed the working directory"),
    "raises": ("ERROR", "SystemExit: 3"),
}
GREEDY = {"greedy": ("ERROR", "can't allocate memory: you tried to allocate 107374")}


def judged(pairs, **options):
    options = {"jobs": 2, "timeout": 300.0, "confinement": Confinement(1 << 30)} | options
    return run(pairs, device="cpu", on_result=lambda i, verdict: None, **options)


def assert_as_expected(name, verdict):
    status, words = (CONFINED | ANYWHERE | GREEDY)[name]
    told = " ".join([verdict.reason, *(finding.message for finding in verdict.findings)])
    assert (verdict.status, words in told) == (status, True), (name, verdict.status, told)


@pytest.mark.slow  # every one of them costs a process
def test_in_isolation_each_costs_its_own_verdicts_and_is_reported_as_itself(zoo):
    expected = CONFINED | ANYWHERE | GREEDY
    names = zoo(*expected)
    pairs = [(CASE, name) for name in names] + [(OTHER, "merge_lse/fine"), (OTHER, "merge_lse/segfault")]
    verdicts = judged(pairs)
    assert [(v.case, v.implementation) for v in verdicts] == pairs
    for name, verdict in zip(expected, verdicts, strict=False):
        assert_as_expected(name, verdict)
    assert [v.status for v in verdicts[-2:]] == ["PASS", "ERROR"], "a fresh worker goes on"


@pytest.mark.parametrize("name", [name for name in ANYWHERE if name != "prints"])
def test_in_this_process_what_can_be_detected_is_and_is_put_back(zoo, name):
    before = GlobalState.take()
    (full,) = zoo(name)
    (verdict,) = judged([(CASE, full)], jobs=1, timeout=None, confinement=None)
    assert_as_expected(name, verdict)
    left = before.restore()
    assert [what for what in left if "left behind" not in what] == []
    assert torch.isfinite(torch.tensor(float("inf"))).item() is False and time.perf_counter() > 0


def test_a_loop_without_end_runs_into_the_time_limit(zoo):
    (name,) = zoo("loop")
    (verdict,) = judged([(CASE, name)], jobs=1, timeout=1.0)
    assert (verdict.status, verdict.reason) == ("ERROR", "no answer after 1 s; worker stopped")


def test_an_implementation_that_ends_every_worker_is_given_up_and_the_others_go_on(zoo):
    leaves, fine = zoo("leaves", "fine")
    pairs = [(CASE.with_seed(seed), leaves) for seed in range(6)] + [(CASE, fine)]
    *lost, last = judged(pairs, jobs=1)
    assert last.status == "PASS"
    assert [verdict.reason for verdict in lost] == ["worker died: exit code 0"] * 3 + [
        "not run: 3 checks in a row before it ended their worker"
    ] * 3
