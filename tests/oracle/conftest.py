"""Verdicts and implementations made up for the tests of what people see."""

import pytest

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.verdict import Finding, Verdict, Worst


@pytest.fixture
def make_case():
    def make(operator="sparse_mqa", **changes) -> Case:
        fields = {
            "operator": operator,
            "geometry": "glm-5.2",
            "heads": 16,
            "q_lens": (64, 1),
            "k_lens": (300, 1),
            "topk": 64 if operator == "sparse_mqa" else 0,
        }
        return Case(**(fields | changes))

    return make


@pytest.fixture
def make_verdict(make_case):
    def make(status="PASS", implementation="sparse_mqa/triton", *, case=None, **changes) -> Verdict:
        case = case or make_case(implementation.partition("/")[0])
        return Verdict(case=case, implementation=implementation, status=status, **changes)

    return make


@pytest.fixture
def failure(make_verdict) -> Verdict:
    return make_verdict(
        "FAIL",
        reason="element: 37 of 33280 elements outside their budget",
        findings=(
            Finding(
                "element", "37 of 33280 elements outside their budget, worst ratio 11.3", True, None,
                "37 of 33280 elements; queries 12; heads = 3 mod 16; columns 475-511",
            ),
            Finding("bias", "output too small by 0.81% of its size", False, 3.2e-11),
        ),
        measures={"element": 11.3, "row": 4.25, "lse": 0.02},
        worst=(
            Worst("out", (12, 3, 511), 0.1234, 0.12, 3e-4),
            Worst("out", (12, 3, 510), float("nan"), -0.25, 5e-4),
        ),
        seconds=0.125,
    )  # fmt: skip


@pytest.fixture
def make_implementation():
    def make(name="sparse_mqa/triton", *, reason=None, load=lambda: print) -> Implementation:
        return Implementation(name, Contract(), lambda facts: reason, load)

    return make


@pytest.fixture
def attnoracle(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def attnoracle(*arguments):
        """Exit code, stdout and stderr of one command."""
        code = main(arguments)
        return code, *capsys.readouterr()

    return attnoracle
