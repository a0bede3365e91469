"""The incident of vllm#52512 at tiny sizes: threshold 2, top-k 8, so that 3 to 8 fresh tokens are the bad lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.layer.contract import LayerUnderTest
from attnoracle.oracle.layer.rig import Rig, RigSizes, StepResult
from attnoracle.reference.layer import MissingMetadata, Parts, SparseMLALayer
from attnoracle.reference.routing import Deployment, Rules

SIZES = RigSizes(kinds=("full", "shared", "full"))
Versions = Callable[[str], Rules]
INCIDENT = {"route", "capability", "topk-computed"}


def without_mha(parts: Parts) -> LayerUnderTest:
    """A generic layer as the fused one was: it only calls sparse MQA."""
    return SparseMLALayer(replace(parts, runs_mha=False))


def broken(result: StepResult) -> set[str]:
    return {violation.rule for violation in result.violations}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 9, 20])
def test_faulty_lengths(versions: Versions, deployment: Deployment, length: int) -> None:
    rules = versions("vllm-51298")
    result = Rig(rules, deployment, SIZES).step([(1, length)])
    exact = Rig(rules, replace(deployment, force_mqa=True), SIZES).step([(1, length)])
    if 3 <= length <= 8:
        assert broken(result) == INCIDENT
        assert not result.outputs[0].any(), "every slot is -1, so nothing is attended to"
    else:
        assert broken(result) == set()
        assert torch.equal(result.outputs[-1], exact.outputs[-1])


def test_the_violation_names_the_parties(versions: Versions, deployment: Deployment) -> None:
    result = Rig(versions("vllm-51298"), deployment, SIZES).step([(1, 5)])
    text = {str(violation) for violation in result.violations}
    assert (
        "topk-computed: step 1, layers.1, rows 0..4: the indexer of layers.0 skipped (dense MHA reads every key); "
        "but sparse_mqa of layers.1 reads rows last written (reset) in step 1 by layer 0"
    ) in text
    assert (
        "route: step 1, layers.0, rows 0..4: the rules decided dense_mha (longest prefill 5 <= top-k 8); "
        "but the layer ran sparse_mqa"
    ) in text


def test_stale_rows_are_known_by_provenance(versions: Versions, deployment: Deployment) -> None:
    """The generic layer leaves an earlier step's rows; some are valid by their values, and none is fresh."""
    generic = replace(deployment, wrapper="generic")
    rig = Rig(versions("vllm-51298"), generic, SIZES, make=without_mha)
    assert rig.step([(1, 20)]).violations == ()
    result = rig.step([(2, 6)])
    assert broken(result) >= INCIDENT | {"foreign-row"}
    stale = next(violation for violation in result.violations if violation.rule == "topk-computed")
    assert stale.rows == ((0, 6),)
    assert "reads rows last written (topk) in step 1 by layer 2" in stale.parties[1]
    assert result.outputs[0].any()


@pytest.mark.parametrize(
    ("version", "change"),
    [
        pytest.param("vllm-51298", {"force_mqa": True}, id="forced-mqa"),
        pytest.param("vllm-52512", {}, id="capability-off"),
        pytest.param("vllm-53785", {}, id="mha-branch"),
        pytest.param("vllm-0.33", {}, id="0.33"),
        pytest.param("vllm-48407", {"force_mqa": True}, id="before-and-forced"),
    ],
)
def test_cures(versions: Versions, deployment: Deployment, version: str, change: dict[str, Any]) -> None:
    rig = Rig(versions(version), replace(deployment, **change), SIZES)
    exact = Rig(versions("attnoracle"), deployment, SIZES)
    for queries in ([(1, 3), (2, 5)], [(3, 8)], [(4, 9), (5, 4)], [(1, 1), (2, 1)], [(1, 1), (6, 7)]):
        result, wanted = rig.step(queries), exact.step(queries)
        assert result.violations == ()
        torch.testing.assert_close(result.outputs[-1], wanted.outputs[-1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("before", "queries", "mode", "expected"),
    [
        pytest.param([(1, 5)], [(1, 1), (2, 6)], "NONE", {"route", "capability"}, id="one-decode-token"),
        pytest.param([], [(2, 6), (3, 12)], "NONE", set(), id="one-long-prefill"),
        pytest.param([(1, 5), (2, 4)], [(1, 1), (2, 1)], "FULL", set(), id="uniform-decodes-full-graph"),
    ],
)
def test_companions_are_right_though_faulty(
    versions: Versions,
    deployment: Deployment,
    before: list[tuple[int, int]],
    queries: list[tuple[int, int]],
    mode: Any,
    expected: set[str],
) -> None:
    faulty = Rig(versions("vllm-51298"), deployment, SIZES)
    right = Rig(versions("attnoracle"), deployment, SIZES)
    for rig in (faulty, right):
        if before:
            rig.step(before)
    result, wanted = faulty.step(queries, mode=mode), right.step(queries, mode=mode)
    torch.testing.assert_close(result.outputs[-1], wanted.outputs[-1], rtol=1e-10, atol=1e-10)
    assert broken(result) == expected


def test_before_the_skip_was_bound_only_the_route_differed(versions: Versions, deployment: Deployment) -> None:
    result = Rig(versions("vllm-48407"), deployment, SIZES).step([(1, 5)])
    assert broken(result) == {"route", "capability"}


@pytest.mark.parametrize("field", ["num_decode_tokens", "slots", "positions", "query_lens"])
def test_a_missing_field_is_named(rules: Rules, deployment: Deployment, field: str) -> None:
    rig = Rig(rules, deployment, SIZES)
    missing: dict[str, Any] = {field: None}
    with pytest.raises(MissingMetadata, match=f"expected field '{field}', got none"):
        rig.step([(1, 5)], alter=lambda metadata: replace(metadata, **missing))
    violations = rig.monitor.end()
    assert {violation.rule for violation in violations} == {"metadata-missing"}
    assert any(field in violation.parties[0] for violation in violations)


def test_a_monitor_wants_an_open_step(rules: Rules, deployment: Deployment) -> None:
    rig = Rig(rules, deployment, SIZES)
    with pytest.raises(BadInput, match="expected begin"):
        rig.monitor.end()
