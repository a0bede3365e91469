"""Knobs and stages: of an incident, and of a run."""

from __future__ import annotations

import json

import pytest

from attnoracle.oracle.bisect.knobs import Knob, environment_knobs, isolate, variant_knobs
from attnoracle.oracle.bisect.look import Look
from attnoracle.oracle.bisect.stages import STAGES, localise
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.replay.incident import load_incident
from attnoracle.oracle.replay.operators import injected

#: The shortest prompt of the incident that fails.
LENGTH = 129


@pytest.fixture(scope="module")
def incident():
    return load_incident("pr-52512")


def test_the_incident_comes_down_to_one_knob(attnoracle):
    code, out, err = attnoracle(
        "bisect", "knobs", "pr-52512", "--good", "mha-branch", "--bad", "faulty", "--length", str(LENGTH), "--json", "-"
    )
    assert code == 0
    document = json.loads(out)
    assert len(document["results"][0]["knobs"]) > 1
    assert document["summary"] == {"breaks": ["runs_mha"], "cures": ["runs_mha"]}
    assert "runs_mha: good True, bad False" in err


def test_the_incident_lies_in_the_route(incident):
    found = localise(
        incident, injected("reference", "cpu"), incident.variant("mha-branch"), incident.variant("faulty"), LENGTH
    )
    assert [one.stage for one in found] == list(STAGES)
    assert [one.stage for one in found if one.culprit] == ["route"]


def test_ends_that_are_not_what_they_are_called_are_refused(incident):
    operators = injected("reference", "cpu")
    with pytest.raises(BadInput, match="at 128 tokens expected mha-branch to pass and faulty to fail"):
        localise(incident, operators, incident.variant("mha-branch"), incident.variant("faulty"), 128)


def test_a_variant_has_no_knobs_against_itself(incident):
    with pytest.raises(BadInput, match="faulty and faulty differ in no rule"):
        variant_knobs(incident.variant("faulty"), incident.variant("faulty"))
    names = [knob.name for knob in variant_knobs(incident.variant("forced-mqa"), incident.variant("faulty"))]
    assert names == ["force_mqa"]


def _run(needed, signature="FAIL"):
    def run(values):
        bad = {name for name, value in values.items() if value == "bad"}
        return Look("bad", signature) if needed <= bad else Look("good")

    return run


def test_a_pair_that_only_together_fails_is_found_and_either_cures():
    knobs = [Knob(f"k{n}", "good", "bad") for n in range(8)]
    culprit = isolate(knobs, _run({"k2", "k5"}))
    assert culprit.breaks == ("k2", "k5")
    assert culprit.cures in (("k2",), ("k5",))


def test_another_failure_does_not_count():
    """k0 alone breaks too, but otherwise."""
    knobs = [Knob(f"k{n}", "good", "bad") for n in range(4)]

    def run(values):
        bad = {name for name, value in values.items() if value == "bad"}
        if "k3" in bad:
            return Look("bad", "FAIL element out")
        return Look("bad", "ERROR ImportError") if "k0" in bad else Look("good")

    assert isolate(knobs, run).breaks == ("k3",)


def test_environment_variables_are_knobs_of_a_run(attnoracle):
    code, out, _ = attnoracle(
        "bisect", "knobs", "--good", "TILE=64", "--good", "WARPS=4", "--bad", "TILE=128", "--bad", "WARPS=8",
        "--bad", "EXTRA=1", "--run", 'test "$TILE" = 64',
    )  # fmt: skip
    assert code == 0
    assert "3 knobs differ; needed for the failure: TILE" in out
    assert "TILE: good '64', bad '128'" in out


@pytest.mark.parametrize("good", [["TILE"], ["=3"], ["A=1"]])
def test_assignments_that_cannot_be_are_refused(good):
    with pytest.raises(BadInput, match="NAME=VALUE"):
        environment_knobs(good, ["A=1"])
