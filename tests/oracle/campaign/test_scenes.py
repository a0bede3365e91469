"""Sequences of batches in a campaign: layers under their contract, graphs against eager steps."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from random import Random

import pytest

from attnoracle.oracle.bundle import read
from attnoracle.oracle.bundle.scene import replay_scene, write_scene
from attnoracle.oracle.campaign.classes import classes
from attnoracle.oracle.campaign.corpus import Corpus
from attnoracle.oracle.campaign.groups import GROUPS
from attnoracle.oracle.campaign.guide import Guide, Mode
from attnoracle.oracle.campaign.night import Budget, Night
from attnoracle.oracle.campaign.result import Result
from attnoracle.oracle.campaign.scene_play import play, shrunk
from attnoracle.oracle.campaign.scenes import Scene, drawn, legal, names, planted_in
from attnoracle.oracle.campaign.space import Space, fitting_here
from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.again import judge
from attnoracle.oracle.cli.campaign import searched
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.graphs.sequences import parse
from attnoracle.oracle.verdict import Finding, Verdict

PLANTED = ("layer:fault:shifted-slots", "layer:fault:skips-on-length", "graphs:fault:pr-52512")
RIGHT = ("layer:generic",)
LAYER = "layer:fused:h2:q5,1:k5,6:top4:fp32:randn:contiguous:00.seqs.4+01.a5+02.full.decode.a1:s0"


@pytest.mark.parametrize("name", [*names(), PLANTED[0], PLANTED[2]])
def test_a_sequence_is_a_case_and_its_id_says_all(name):
    rng = Random(3)
    for _ in range(40):
        case = drawn(name, rng)
        assert Case.parse(case.id) == case
        scene = Scene.of(case)
        assert scene.case() == case and legal(scene)
        if scene.kind == "graphs":
            assert len(parse(scene.line).steps) == len(scene.turns)


def test_the_line_of_a_sequence_is_that_of_the_command():
    case = Case.parse(
        "graphs:fused:h2:q20,6:k20,6:top8:fp32:randn:contiguous:00.piecewise.8.24.at.20+01.a20+02.eager.-a.b6:s0"
    )
    assert Scene.of(case).line == "PIECEWISE 8,24 at 20: a20; eager -a b6"


@pytest.mark.parametrize(
    "changed",
    [
        LAYER.replace("02.full.decode.a1", "02.full.decode.b1"),
        LAYER.replace("q5,1", "q5,2"),
        LAYER.replace("01.a5+", ""),
        LAYER.replace("full", "eager"),
        LAYER.replace("layer:fused", "layer:packed"),
        LAYER.replace("02.full", "02.-c.full"),
    ],
)
def test_steps_that_do_not_follow_are_refused(changed):
    Scene.of(Case.parse(LAYER))
    with pytest.raises(BadInput):
        Scene.of(Case.parse(changed))


def test_routes_reasons_and_transitions_are_classes():
    rng = Random(0)
    seen = {group: set() for group in GROUPS}
    for name in ("layer:fused", "graphs:fused") * 40:
        for group, found in classes(drawn(name, rng)).items():
            seen[group] |= found
    routes = {name for name in seen["route"] if ":" not in name}
    assert {name.split()[-1] for name in routes} == {"none", "dense_mha", "masked_mha", "sparse_mqa"}
    assert {name.split(":")[0] for name in seen["route"] if ":" in name} == {"skips", "scores"}
    assert {"eager", "force", "padded", "fills its graph", "beyond the graphs", "starts over"} <= seen["contract"]
    assert len(seen["meets"]) > 30 and all(len(pair) == 2 for pair in seen["meets"])


class Aside:
    """Looks into failures in this process."""

    def call(self, function, *arguments):
        answer = Future()
        answer.set_result(function(*arguments))
        return answer

    def close(self):
        """Nothing is at work."""


def test_shrinking_drops_steps_requests_and_settings_and_keeps_the_failure():
    """Wrong where a request starts over with at least 3 tokens; another failure where one has 20."""

    def run(case):
        scene = Scene.of(case)
        marks = []
        for turn in scene.turns:
            marks += ["foreign-row"] * any(n >= 3 for name, n in turn.queries if name in turn.preempted)
            marks += ["gather"] * any(n == 20 for _, n in turn.queries)
        found = tuple(Finding(mark, "", True) for mark in dict.fromkeys(marks[:1]))
        return Verdict(case=case, implementation="x", status="FAIL" if found else "PASS", findings=found)

    rng = Random(5)
    case = next(
        case for case in (drawn("layer:fused", rng) for _ in range(500)) if "foreign" in str(run(case).findings)
    )
    verdict, runs = shrunk(case, run, 60)
    scene = Scene.of(verdict.case)
    assert verdict.findings[0].check == "foreign-row" and runs > 3
    assert len(scene.turns) == 2 and not scene.setting and verdict.case.q_lens == (1, 3)
    right = replace(scene, turns=scene.turns[:1]).case()
    assert shrunk(right, run, 60) == (None, 1)


def test_a_campaign_finds_planted_faults_once_each_shrinks_them_and_passes_the_right_layer(tmp_path, engine):
    space = Space((*PLANTED, *RIGHT), ("tiny",))
    ran = []
    for cases in (12, 2):
        with Corpus(tmp_path / "corpus") as corpus:
            guide = Guide(space, 0, fitting_here("cpu"))
            night = Night(corpus, guide, engine(judge), Aside(), space.implementations)
            night.run(Budget(cases=cases))
            night.close({"seed": 0})
        ran.append(night)
    first, second = ran
    found = {finding.implementation: finding for finding in first.findings}
    assert set(found) == set(PLANTED) and len(first.findings) == len(PLANTED)
    for name, finding in found.items():
        fault = planted_in(name)
        sought = set(fault.rules) if name.startswith("layer") else {fault.check}
        assert sought & {mark.check for mark in finding.signature.marks}
        assert len(Scene.of(finding.smallest).turns) <= 2
        assert finding.cause["conclusion"].split(":")[0] in {mark.check for mark in finding.signature.marks}
        assert read(first.corpus.folder / finding.cause["bundle"]).signature == finding.signature
    assert all(
        result.status == "PASS" for place, result in first.corpus.results.items() if _name(first, place) in RIGHT
    )
    # The next night goes on: what was found is tried again and is still one line.
    assert {finding.again for finding in second.findings} == {"FAIL"} and len(second.findings) == len(PLANTED)
    assert len(second.corpus.results) == 14


def _name(night, place):
    return dict(night.corpus.planned())[place][1]


def test_the_smallest_sequence_is_played_again_by_repro(attnoracle):
    case = "layer:fused:h2:q1:k1:top16:fp32:randn:contiguous:01.a1:s0"
    code, out, _ = attnoracle("repro", case, "-i", "layer:fault:shifted-slots", "--device", "cpu")
    assert code == 1 and "foreign-row" in out and "step 1, layers.0" in out
    code, out, _ = attnoracle("repro", case, "-i", "layer:fused", "--device", "cpu")
    assert code == 0 and "PASS" in out
    code, _, err = attnoracle("repro", case, "--device", "cpu")
    assert code == 2 and "expected --implementation" in err


def test_a_bundle_of_a_sequence_tells_its_steps_and_is_played_again(attnoracle, tmp_path):
    case = "layer:fused:h2:q3,1:k3,4:top16:fp32:randn:contiguous:01.a3+02.decode.a1:s0"
    verdict = play(Case.parse(case), "layer:fault:selects-the-latest")
    assert verdict.status == "PASS"  # short enough for every key to be selected
    planted = "layer:fault:projects-other-heads"
    folder = write_scene(tmp_path / "bundle", play(Case.parse(case), planted))
    steps = json.loads((folder / "steps.json").read_text())["steps"]
    assert [(step["route"], bool(step["broken"])) for step in steps] == [("dense_mha", False), ("none", True)]
    assert steps[1]["requests"] == [{"request": "a", "new": 1, "cached": 3}]
    bundle = read(folder)
    assert replay_scene(bundle, planted, "cpu").outcome == "same"
    assert replay_scene(bundle, "layer:fused", "cpu").outcome == "gone"
    code, out, _ = attnoracle("repro", str(folder), "--device", "cpu")
    assert code == 1 and "differential" in out and "the same failure" in out
    (folder / "steps.json").write_text("{}")
    code, _, err = attnoracle("repro", str(folder), "--device", "cpu")
    assert code == 2 and "another hash" in err


OWN = """
from attnoracle.reference.layer import SparseMLALayer

class Halves(SparseMLALayer):
    def attend_mqa(self, query, metadata, tokens, trace):
        return super().attend_mqa(query, metadata, tokens, trace) / 2
"""


def test_a_layer_of_the_users_is_a_subject(attnoracle, tmp_path):
    (tmp_path / "own_layers.py").write_text(OWN)
    wrong, right = (f"layer:{tmp_path}/own_layers.py:{name}" for name in ("Halves", "SparseMLALayer"))
    assert searched([wrong], []) == (wrong,) and drawn(wrong, Random(0)).operator == "layer"
    assert play(Case.parse(LAYER), right).status == "PASS"
    verdict = play(Case.parse(LAYER), wrong)
    assert verdict.status == "FAIL" and verdict.reason.startswith("differential: step 2")
    folder = write_scene(tmp_path / "bundle", verdict)
    code, _, err = attnoracle("repro", str(folder), "--device", "cpu")
    assert code == 2 and "not imported by itself" in " ".join(err.split())
    code, out, _ = attnoracle("repro", str(folder), "--device", "cpu", "-i", right)
    assert code == 0 and "the failure is gone" in out
    with pytest.raises(BadInput, match="no_such"):
        searched(["layer:no_such_module:make"], [])


def test_a_layer_that_raises_is_an_error_with_its_words(monkeypatch):
    from attnoracle.oracle.layer.rig import Rig

    def step(self, *given, **options):
        raise TypeError("no such thing")

    monkeypatch.setattr(Rig, "step", step)
    verdict = play(Case.parse(LAYER), "layer:fused")
    assert (verdict.status, verdict.reason) == ("ERROR", "TypeError: no such thing")


def test_subjects_are_named_like_implementations():
    assert searched(["layer:*"], []) == ("layer:fused", "layer:generic")
    assert searched(["graphs:fault:pr-*"], []) == ("graphs:fault:pr-52512",)
    assert {"layer:fused", "graphs:packed"} < set(searched([], [])) and "graphs:triton" not in searched([], [])
    assert not any(name.startswith(("layer:", "graphs:")) for name in searched([], ["merge_lse"]))
    with pytest.raises(BadInput, match="nearest: graphs:fused"):
        searched(["graphs:fusd"], [])


def test_guided_sequences_cover_more_transitions_than_random_ones():
    space = Space(("layer:fused", "graphs:fused"), ("tiny",))
    covered = {}
    for mode in Mode:
        guide = Guide(space, 0, fitting_here("cpu"), mode)
        for number in range(3):
            for pair in guide.plan(number):
                guide.learn(pair, Result("PASS", None, None, 0.0, "cpu"))
        covered[mode] = sum(len(seen["meets"]) for seen in guide.seen.values())
    assert covered[Mode.coverage] > 1.4 * covered[Mode.random]
