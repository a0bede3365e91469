"""Every incident of layers and operators: faulty variants fail for their reason, cures and companions pass."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.replay.expected import Outcome
from attnoracle.oracle.replay.incident import INCIDENTS, incidents, load_incident, read_incident
from attnoracle.oracle.replay.kernels import play_cases
from attnoracle.oracle.replay.operator_incident import OperatorIncident
from attnoracle.oracle.replay.steps import StepsReplay
from attnoracle.oracle.replay.steps_incident import StepsIncident

NAMES = [name for name in incidents() if name != "pr-52512"]


def play(incident: StepsIncident | OperatorIncident) -> list[Outcome]:
    if isinstance(incident, OperatorIncident):
        return list(play_cases(incident, incident.variants))
    return list(StepsReplay(incident).run(incident.variants))


def test_there_are_enough() -> None:
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_an_incident_is_as_it_was(name: str) -> None:
    incident = load_incident(name)
    seen = play(incident)
    assert [f"{one.variant}: {one.name}: {one.status} {one.detected_by}" for one in seen if not one.met] == []
    for variant in incident.variants:
        mine = [one for one in seen if one.variant == variant.name]
        assert {one.status for one in mine} == ({"PASS", "FAIL"} if variant.faulty else {"PASS"}), variant.name
        if variant.faulty:
            assert all(one.wanted_by for one in mine if one.status == "FAIL")


@pytest.mark.parametrize("name", ["sglang-30645", "vllm-48611"])
def test_a_cure_that_cures_nothing_is_seen(name: str) -> None:
    """The faulty variant handed in as a cure is not as expected."""
    incident = load_incident(name)
    faulty, cured = incident.variants[:2]
    worse = replace(cured, fault=faulty.fault) if isinstance(incident, StepsIncident) else replace(faulty, name="x")
    if isinstance(incident, OperatorIncident):
        object.__setattr__(worse, "faulty", False)
    seen = play(replace(incident, variants=(faulty, worse, cured)))
    assert any(not one.met for one in seen if one.variant == worse.name)


def test_a_detector_that_does_not_fire_is_seen() -> None:
    incident = load_incident("vllm-48611")
    scenes = tuple(replace(scene, detected_by=("order",)) if scene.fails else scene for scene in incident.scenes)
    seen = play(replace(incident, scenes=scenes))
    assert {one.met for one in seen if one.wanted == "FAIL"} == {False}


def test_a_faulty_layer_that_raises_has_failed() -> None:
    """Metadata without a block table: the layer stops, and the replay goes on."""
    incident = load_incident("vllm-49486")
    faulty, cured = incident.variants
    seen = play(replace(incident, variants=(replace(faulty, fault="drops-block-table"), cured)))
    broken = [one for one in seen if one.variant == faulty.name]
    assert {one.status for one in broken} == {"FAIL"} and any("raised" in one.detected_by for one in broken)
    assert all(one.met for one in seen if one.variant == cured.name)


@pytest.mark.parametrize("name", NAMES)
def test_files_say_what_is_known(name: str) -> None:
    data = tomllib.loads((INCIDENTS / f"{name}.toml").read_text(encoding="utf-8"))
    assert data["name"] == name
    assert len(data["story"].split()) > 15 and data["sources"]
    assert any(not one["fails"] for one in data.get("scenes", data.get("cases")))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "steps"', 'kind = "step"', "kind of incident"),
        ("fails = true\ndetected_by", "fails = false\ndetected_by", "expected detected_by where it fails"),
        ('what = "two', 'who = "two', "unknown"),
        ("faulty = true", "faulty = false", "expected a faulty variant"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (INCIDENTS / "vllm-54541.toml").read_text(encoding="utf-8").replace('what = "no', 'what = "two', 1)
    assert old in text
    path = tmp_path / "broken.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput, match=said):
        read_incident(path)


def test_an_unknown_fault_is_bad_input() -> None:
    incident = load_incident("vllm-54541")
    wrong = replace(incident.variants[0], fault="global-positions")
    with pytest.raises(BadInput, match="global-positions-in-local-tables"):
        play(replace(incident, variants=(wrong, incident.variants[1])))


def test_the_command_on_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["replay", "vllm-49486", "--json", "-"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["summary"]["incidents"] == 1
    step = document["steps"][0]
    assert step["incident"] == "vllm-49486"
    assert (step["status"], step["met"]) == ("FAIL", True)
    assert {"skip", "topk-computed", "differential"} <= set(step["detected_by"])
    assert max(map(len, captured.err.splitlines())) <= 80


def test_the_command_on_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two cheap incidents stand for all."""
    from attnoracle.oracle.replay import incident as module

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(module, "incidents", lambda: ("vllm-49294", "vllm-49486"))
    assert main(["replay", "--all", "--json", str(tmp_path / "all.json")]) == 0
    out = capsys.readouterr().out
    assert out.count("as expected") == 2 and "2 incidents" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert json.loads((tmp_path / "all.json").read_text())["summary"]["incidents"] == 2
