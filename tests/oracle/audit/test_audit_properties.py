"""Properties as killers in their own right: the audit that knows no right answer, and its committed file."""

import json
from pathlib import Path

import pytest

from attnoracle.oracle.audit import properties_file
from attnoracle.oracle.audit.plan import Settings, plan
from attnoracle.oracle.audit.trial import candidates_first
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import FAULTS, fault
from attnoracle.oracle.properties.property import Outcome
from attnoracle.oracle.properties.table import PROPERTIES

ROOT = Path(__file__).resolve().parents[3]
NAMES = {one.name for one in PROPERTIES}


def test_properties_kill_without_a_reference(command, tmp_path):
    target = tmp_path / "audit.json"
    named = ("--fault", "merge-by-mean", "--fault", "empty-row-lse-zero")
    code, out, _ = command("--properties", *named, "--good-runs", "2", "--json", str(target))
    found = json.loads(target.read_text())
    killers = {one["name"]: one["killers"] for one in found["faults"]}
    assert code == 0 and found["summary"]["kill_rate"] == 1.0
    assert all(names and set(names) <= NAMES for names in killers.values())
    assert found["summary"]["good_runs"] == 2 and found["summary"]["false_alarms"] == 0
    assert "2 of 2 faults killed by properties alone" in out


def test_an_audit_goes_on_with_what_it_has(audit, tmp_path):
    settings = Settings(faults=("merge-by-mean",), properties=True)
    state = str(tmp_path / "state")
    first = audit(settings, state)
    ran = []
    again = audit(settings, state, ran.append)
    assert ran == [] and again.trials == first.trials and first.trials[0].outcome.checks


def test_a_fault_that_the_file_has_as_killed_has_to_die(audit, monkeypatch, recorded):
    settings = Settings(faults=("merge-by-mean",), properties=True)
    assert recorded["faults"]["merge-by-mean"]
    kept = Outcome(6, "repeat", "x", candidates_first(fault("merge-by-mean"), 0).id, "held", "", 0.0, 1)
    monkeypatch.setattr("attnoracle.oracle.audit.properties.hold", lambda case, one, device: iter([kept]))
    found = audit(settings)
    assert properties_file.lost(found) == ["merge-by-mean"] and properties_file.exit_code(found) == 1


def test_interpreted_triton_kernels_are_put_to_them_by_name():
    every = [job.name for job in plan(Settings(properties=True, good_runs=0))]
    assert len(every) == sum(one.planted_in != "triton" for one in FAULTS)
    named = plan(Settings(properties=True, faults=("triton-lse-base-2",)))
    assert [job.name for job in named] == ["fault:triton-lse-base-2"]


@pytest.fixture(scope="module")
def recorded():
    return properties_file.recorded()


def test_the_file_knows_faults_and_properties_of_today(recorded):
    names = {one.name for one in FAULTS if one.planted_in != "triton"}
    assert set(recorded["faults"]) <= names
    assert {name for killers in recorded["faults"].values() for name in killers} <= NAMES


def test_the_figures_of_the_file_follow_from_its_lines(recorded):
    figures = recorded["summary"]
    killed = sum(bool(killers) for killers in recorded["faults"].values())
    assert (figures["faults"], figures["killed"]) == (len(recorded["faults"]), killed)
    assert figures["kill_rate"] == pytest.approx(killed / (figures["faults"] - figures["not_run"]))
    assert figures["good_runs"] >= 60 and figures["false_alarms"] == 0


def test_the_page_states_the_figures_of_the_file(recorded):
    text = (ROOT / "docs" / "properties.md").read_text()
    assert properties_file.updated(text, recorded) == text, "attnoracle audit --properties --write renews them"
    with pytest.raises(BadInput, match="once each"):
        properties_file.updated("no markers", recorded)
