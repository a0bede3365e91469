"""Points pinned in data: thresholds, policy table, workspace guard, indexer skip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnoracle.oracle.policies import load_rules
from attnoracle.reference.routing import (
    Batch,
    Deployment,
    Request,
    Rules,
    decide_route,
    decide_skip,
    decode_threshold,
    mask_bytes,
    masked_policy,
    max_requests,
    workspace_guard,
)


@pytest.fixture
def rules() -> Rules:
    return load_rules("vllm-0.33")


def test_policy_table(policy_point: dict[str, Any], rules: Rules, glm: Deployment) -> None:
    qk, v = policy_point["head_dims"]
    deployment = replace(
        glm,
        backend=policy_point["backend"],
        tensor_parallel=policy_point["tensor_parallel"],
        qk_nope_head_dim=qk - 64,
        v_head_dim=v,
    )
    decision = masked_policy(
        rules,
        deployment,
        query_len=policy_point["query_len"],
        seq_len=policy_point["seq_len"],
        has_context=policy_point["context"],
    )
    assert decision.value is policy_point["expected"], decision
    assert decision.reasons


def test_decode_threshold(threshold_point: dict[str, Any], rules: Rules, glm: Deployment) -> None:
    deployment = replace(
        glm,
        backend=threshold_point["backend"],
        device_family=threshold_point["device_family"],
        local_heads=threshold_point["local_heads"],
    )
    assert decode_threshold(rules, deployment).value == threshold_point["expected"]


def test_workspace_guard(guard_point: dict[str, Any], rules: Rules) -> None:
    b, q, chunk = guard_point["requests"], guard_point["query_len"], guard_point["longest_chunk"]
    assert workspace_guard(rules, b, q, chunk).value is guard_point["fits"]
    if "mebibytes" in guard_point:
        assert rules.mask_workspace is not None
        assert mask_bytes(rules.mask_workspace, b, q, max(q, chunk)) == guard_point["mebibytes"] * 2**20


def test_max_requests(max_requests_point: dict[str, Any], rules: Rules) -> None:
    assert rules.mask_workspace is not None
    assert max_requests(rules.mask_workspace, max_requests_point["length"]) == max_requests_point["expected"]


def test_skip(skip_point: dict[str, Any], rules: Rules, glm: Deployment) -> None:
    requests = tuple(Request(query, context, bool(prompt)) for query, context, prompt in skip_point["requests"])
    deployment = replace(glm, force_mqa=skip_point["force_mqa"])
    step = decide_route(rules, deployment, Batch(requests))
    decision = decide_skip(
        rules, deployment, step, layer="layers.3", mode=skip_point["mode"], capturing=skip_point["capturing"]
    )
    assert decision.value is skip_point["skips"], decision
    assert decision.reasons
