"""What a skip leaves behind in the generic layer: an untouched buffer; a score leaves -1 behind the selections."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnoracle.oracle.layer.rig import Rig, RigSizes
from attnoracle.reference.layer import CacheWrite, Reached
from attnoracle.reference.routing import Deployment, Rules, classify, indexer_threshold

SKIPS = tomllib.loads((Path(__file__).parent / "skips.toml").read_text(encoding="utf-8"))["skip"]
PRESET = 17


@pytest.mark.parametrize("scenario", SKIPS, ids=lambda scenario: scenario["id"])
def test_the_buffer_and_the_cache(rules: Rules, deployment: Deployment, scenario: dict[str, Any]) -> None:
    rig = Rig(rules, replace(deployment, wrapper="generic", **scenario.get("deployment", {})), RigSizes())
    if "before" in scenario:
        rig.step(scenario["before"])
    rig.buffer.indices.fill_(PRESET)
    result = rig.step(
        scenario["requests"], mode=scenario.get("mode", "NONE"), capturing=scenario.get("capturing", False)
    )
    assert result.violations == ()
    total = result.step.batch.num_tokens
    rows = rig.buffer.indices[:total]
    if scenario["skips"]:
        assert (rows == PRESET).all()
    else:
        _, positions = result.step.token_rows()
        assert ((rows >= 0).sum(1) == (positions + 1).clamp_max(deployment.index_topk)).all()
        assert not (rows == PRESET).any()
    assert (rig.buffer.indices[total:] == PRESET).all()
    events = result.traces[0].events
    writes = [place for place, event in enumerate(events) if isinstance(event, CacheWrite) and event.cache == "index"]
    decided = next(place for place, event in enumerate(events) if isinstance(event, Reached))
    assert len(writes) == 1
    assert writes[0] < decided


def test_the_mismatch_is_one(rules: Rules, deployment: Deployment) -> None:
    """The indexer calls decode what the main attention calls prefill."""
    (scenario,) = (scenario for scenario in SKIPS if scenario["id"] == "threshold-mismatch")
    changed = replace(deployment, **scenario["deployment"])
    result = Rig(rules, changed, RigSizes()).step(scenario["requests"])
    assert scenario["requests"][0][1] <= indexer_threshold(changed).value
    assert classify(rules, changed, result.step.batch)[1].value.num_decode_tokens == 0
