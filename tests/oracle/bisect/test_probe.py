"""A look by a command: labels, signatures, limits."""

from __future__ import annotations

import os

import pytest

from attnoracle.oracle.bisect.packages import parse_pin
from attnoracle.oracle.bisect.probe import Probe, Ran, judge_exit
from attnoracle.oracle.bisect.sizes import Sizes
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.signature import part_of, signature, signature_of
from attnoracle.oracle.check import check
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import fault
from attnoracle.oracle.records.verdict_json import verdict_record

TARGET = ("--implementation", "merge_lse/torch")
CASE = "merge_lse:tiny:h2:q5:k5:fp32:randn:contiguous:-:s0"


@pytest.mark.parametrize(
    ("code", "label", "sign"),
    [(0, "good", ""), (1, "bad", "exit code 1"), (-11, "bad", "exit code -11"), (125, "skip", ""), (None, "skip", "")],
)
def test_exit_codes_are_those_of_git_bisect_run(code, label, sign):
    found = judge_exit(Ran(code, 0.5, "first\nlast line\n"), "")
    assert (found.label, found.signature) == (label, sign)
    assert found.detail != "" or label == "good"


@pytest.fixture(scope="module")
def judged():
    """A look in a process of its own, and the document that it read: one process serves the tests below."""
    kept = []

    class Keeping(Probe):
        def _judge(self, ran, document, log):
            kept.append((ran, document))
            return Probe._judge(self, ran, document, log)

    look = Keeping(case=CASE, target=TARGET).look(cwd=None, env=os.environ, log="")
    return look, *kept[0]


def test_a_case_is_judged_in_a_process_of_its_own(judged):
    found, ran, document = judged
    assert (found.label, found.signature) == ("good", "")
    assert 0 <= found.measure < 1 and ran.code == 0 and len(document["verdicts"]) == 1


def test_a_measure_over_its_threshold_is_bad_whatever_the_status(judged):
    found = Probe(case=CASE, target=TARGET, measure="worst_ratio", above=1e-9)._judge(*judged[1:], "")
    assert (found.label, found.signature) == ("bad", "worst_ratio > 1e-09")


def test_an_unknown_measure_is_a_skip_that_names_the_known(judged):
    found = Probe(case=CASE, target=TARGET, measure="elegance", above=1)._judge(*judged[1:], "")
    assert found.label == "skip"
    assert "no measure 'elegance'" in found.detail and "worst_ratio" in found.detail


def test_a_process_without_a_verdict_is_a_skip_with_its_last_line(tmp_path):
    """As where the implementation is not there: nothing is written, and the reason goes to stderr."""
    log = tmp_path / "log"
    told = "attnoracle: unknown implementation 'merge_lse/none'"
    found = Probe(case=CASE, target=TARGET).look(python=_python(tmp_path, told), cwd=None, env=os.environ, log=str(log))
    assert found.label == "skip" and told in found.detail and told in log.read_text()


def _python(folder, told):
    """A program in the place of Python that says something and ends with 2."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\necho "{told}" >&2\nexit 2\n')
    program.chmod(0o755)
    return str(program)


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


def test_one_signature_names_a_failure_and_a_part_of_it_is_no_other():
    """Of a verdict and of its record it is the same; a smaller failure is the one that is looked for."""
    verdict = check(Case.parse(CASE), fault("merge-by-mean").implementation())
    whole = str(signature(verdict))
    assert whole == str(signature_of(verdict_record(verdict))) and "values of out" in whole
    assert part_of(whole, whole) and part_of("values of out", "lse of lse; values of out")
    assert not part_of("lse of lse; values of out", "values of out") and not part_of("", whole)
    raised = {"status": "ERROR", "reason": "ValueError: 3 is odd", "case": {"operator": "merge_lse"}, "findings": []}
    assert str(signature_of(raised)) == "error of - (ValueError: is odd)"


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
