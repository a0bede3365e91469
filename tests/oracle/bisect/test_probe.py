"""A look by a command: labels, signatures, limits."""

from __future__ import annotations

import os

import pytest

from attnoracle.oracle.bisect.packages import parse_pin
from attnoracle.oracle.bisect.probe import Probe, Ran, judge_exit, signature
from attnoracle.oracle.bisect.sizes import Sizes
from attnoracle.oracle.case import Case
from attnoracle.oracle.errors import BadInput

CASE = "merge_lse:tiny:h2:q5:k5:fp32:randn:contiguous:-:s0"


@pytest.mark.parametrize(
    ("code", "label", "sign"),
    [(0, "good", ""), (1, "bad", "exit code 1"), (-11, "bad", "exit code -11"), (125, "skip", ""), (None, "skip", "")],
)
def test_exit_codes_are_those_of_git_bisect_run(code, label, sign):
    found = judge_exit(Ran(code, 0.5, "first\nlast line\n"), "")
    assert (found.label, found.signature) == (label, sign)
    assert found.detail != "" or label == "good"


def test_a_case_is_judged_in_a_process_of_its_own():
    found = Probe(case=CASE, target=("--implementation", "merge_lse/torch")).look(cwd=None, env=os.environ, log="")
    assert (found.label, found.signature) == ("good", "")
    assert 0 <= found.measure < 1


def test_a_measure_over_its_threshold_is_bad_whatever_the_status():
    probe = Probe(case=CASE, target=("--implementation", "merge_lse/torch"), measure="worst_ratio", above=1e-9)
    found = probe.look(cwd=None, env=os.environ, log="")
    assert (found.label, found.signature) == ("bad", "worst_ratio > 1e-09")


def test_an_unknown_measure_is_a_skip_that_names_the_known():
    probe = Probe(case=CASE, target=("--implementation", "merge_lse/torch"), measure="elegance", above=1)
    found = probe.look(cwd=None, env=os.environ, log="")
    assert found.label == "skip"
    assert "no measure 'elegance'" in found.detail and "worst_ratio" in found.detail


def test_an_implementation_that_is_not_there_is_a_skip(tmp_path):
    log = tmp_path / "log"
    probe = Probe(case=CASE, target=("--implementation", "merge_lse/none"))
    found = probe.look(cwd=None, env=os.environ, log=str(log))
    assert found.label == "skip"
    assert "unknown implementation" in found.detail
    assert "unknown implementation" in log.read_text()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"case": CASE, "command": "true"},
        {"case": CASE, "measure": "worst_ratio"},
        {"command": "true", "above": 1.0},
    ],
)
def test_what_is_to_be_run_must_be_said_once(options):
    with pytest.raises(BadInput, match="bisect: "):
        Probe(**options)


def test_the_signature_tells_kinds_of_failure_apart():
    failed = {
        "status": "FAIL", "reason": "", "findings": [{"check": "lse"}, {"check": "bias"}], "worst": [{"output": "lse"}],
    }  # fmt: skip
    assert signature(failed) == "FAIL lse lse"
    assert signature({"status": "ERROR", "reason": "ValueError: 3 is odd"}) == "ERROR ValueError"


def test_a_size_replaces_one_field_of_the_case():
    case = Case.parse("dense_mha:tiny:h2:q5,7:k9,30:fp32:randn:contiguous:-:s0")
    sizes = Sizes(case, "k", 7, 40, Probe(case=case.id), request=1)
    assert sizes.at(12).k_lens == (9, 12)
    assert sizes.points[0] == "7" and len(sizes.points) == 34
    assert "k9,12" in sizes.command("12")
    with pytest.raises(BadInput, match="unknown size 'width'"):
        Sizes(case, "width", 1, 2, Probe(case=case.id))
    with pytest.raises(BadInput, match="2 requests, counted from 0"):
        Sizes(case, "k", 1, 2, Probe(case=case.id), request=2)


@pytest.mark.parametrize("text", ["torch", "torch>=2", "torch==2,==3", "=="])
def test_a_pin_is_a_name_and_one_version(text):
    assert parse_pin("torch==2.11.0") == ("torch", "2.11.0")
    with pytest.raises(BadInput, match="expected NAME==VERSION"):
        parse_pin(text)
