"""Requests that begin with a hit of the prefix cache, and what a layer must give by definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnoracle.oracle.campaign.scenes import Scene
from attnoracle.oracle.case import Case
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.layer.expected import expected, wrong_numbers
from attnoracle.oracle.layer.rig import Rig, RigSizes
from attnoracle.reference.layer import Pages
from attnoracle.reference.routing import Deployment, Rules

HIT = "layer:fused:h2:q9,5:k9,22:top16:fp32:randn:contiguous:01.a9+02.a8-b.b5:s0"


def rig(rules: Rules, deployment: Deployment) -> Rig:
    return Rig(rules, replace(deployment, index_topk=4), RigSizes(kinds=("full", "shared"), index_heads=4))


def test_pages_are_free_when_the_last_holder_gave_them_back() -> None:
    pages = Pages(4, 4)
    pages.reserve(0, 8)
    pages.share(1, 0, 4)
    pages.reserve(1, 6)
    assert (pages.held[0], pages.held[1], pages.free) == ([0, 1], [0, 2], [3])
    pages.release(0)
    assert pages.free == [1, 3]
    pages.release(1)
    assert pages.free == [0, 1, 2, 3]
    pages.reserve(2, 4)
    for tokens in (2, 8):
        with pytest.raises(ValueError, match="whole pages"):
            pages.share(3, 2, tokens)


def test_hits_of_hits_attend_to_what_the_first_wrote(rules: Rules, deployment: Deployment) -> None:
    layers = rig(rules, deployment)
    layers.step([(0, 9)])
    layers.adopt(1, 0, 8)
    layers.step([(1, 6)])
    layers.adopt(2, 1, 12)
    layers.adopt(3, 1, 4)
    assert layers.prefixes == {1: ((0, 8),), 2: ((0, 8), (1, 12)), 3: ((0, 4),)}
    for queries in ([(2, 3), (0, 1), (3, 1)], [(0, 1), (1, 1), (2, 1), (3, 7)]):
        result = layers.step(queries)
        assert (*result.violations, *wrong_numbers(layers, result)) == ()
    layers.preempt(0)
    layers.preempt(1)
    result = layers.step([(0, 5), (2, 1), (3, 1)])
    assert (*result.violations, *wrong_numbers(layers, result)) == ()


def test_an_output_is_judged_unless_two_scores_tie(rules: Rules, deployment: Deployment) -> None:
    layers = rig(rules, deployment)
    result = layers.step([(0, 9), (1, 1)])
    wrong = replace(result, outputs=tuple(out * 1.001 for out in result.outputs))
    found = wrong_numbers(layers, wrong)
    assert [violation.rule for violation in found] == ["differential", "differential"]
    for drawn in layers._drawn.values():
        if "index_q" in drawn:
            drawn["index_q"].zero_()  # every score is 0: any selection is right
    (first, _) = expected(layers, result.step)
    assert torch.equal(first.decided, result.metadata.positions < 4)


def test_a_hit_in_an_id() -> None:
    scene = Scene.of(Case.parse(HIT))
    assert scene.turns[1].adopted == (("a", 8, "b"),) and scene.case().id == HIT
    for other in ("a12-b", "a6-b", "a8-a", "c4-b"):
        with pytest.raises(BadInput):
            Scene.of(Case.parse(HIT.replace("a8-b", other)))
