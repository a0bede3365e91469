"""Single routing rules, one test a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnoracle.oracle.policies import load_rules
from attnoracle.reference.routing import (
    Batch,
    Decision,
    Deployment,
    Request,
    Rules,
    classify,
    context_buffer_rows,
    context_rows,
    decide_route,
    decide_skip,
    decode_threshold,
    dense_capability,
    global_mask_fits,
    indexer_threshold,
    mask_shape,
    masked_gate,
    masked_policy,
    prefill_backend,
    skip_binding,
    split_batch,
    workspace_guard,
)


@pytest.fixture
def rules() -> Rules:
    return load_rules("vllm-0.33")


@pytest.fixture
def masked(glm: Deployment) -> Deployment:
    """GLM-5.2 with an unquantised cache: masked MHA is open to it."""
    return replace(glm, cache="model")


def route(rules: Rules, deployment: Deployment, *requests: tuple[int, int]) -> str:
    return decide_route(rules, deployment, Batch.of(requests)).route.value


def test_a_decision_is_not_a_truth_value() -> None:
    with pytest.raises(TypeError, match=r"write decision\.value"):
        bool(Decision(False, ("no",)))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        pytest.param(lambda: Request(1, -1), "context_len", id="negative-context"),
        pytest.param(lambda: Request(0, 5), "query_len", id="no-query-token"),
        pytest.param(lambda: Request.of_sequence(6, 5), "query_len", id="query-longer-than-sequence"),
        pytest.param(lambda: Batch(()), "requests", id="no-request"),
    ],
)
def test_a_batch_that_cannot_be(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=f"field '{field}': expected"):
        make()


def test_arranged_order() -> None:
    requests = (Request(300), Request(200, 50), Request(90, 10), Request(1, 9), Request(100))
    batch, order = Batch(requests).arranged(128)
    assert order == (3, 2, 4, 1, 0)
    assert batch.requests == tuple(requests[index] for index in order)


def test_uniform_decodes_cut_at_the_first_other_length() -> None:
    split = split_batch(Batch.of([(97, 0), (112, 0), (97, 0)]), 128, require_uniform=True).value
    assert [len(split.decodes), len(split.prefills)] == [1, 2]
    mixed = split_batch(Batch.of([(97, 0), (112, 0), (97, 0)]), 128).value
    assert not mixed.prefills


def test_short_extends_are_prefills_under_pcp(rules: Rules, glm: Deployment) -> None:
    batch = Batch.of([(1, 30), (8, 30), (300, 0)])
    assert classify(rules, replace(glm, backend="FLASHINFER_MLA_SPARSE"), batch)[1].value.num_decode_tokens == 9
    pcp = replace(glm, backend="FLASHINFER_MLA_SPARSE", pcp=2)
    assert classify(rules, pcp, batch)[1].value.num_decode_tokens == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"speculative_tokens": 3}, 128),
        ({"speculative_tokens": 200}, 201),
        ({"hisparse": True}, 1),
        ({"dcp": 2, "dcp_varlen": False}, 1),
        ({"dcp": 2}, 128),
    ],
    ids=["speculation-below", "speculation-above", "hisparse", "dcp-fixed-length", "dcp-varlen"],
)
def test_threshold_modifiers(rules: Rules, glm: Deployment, change: dict[str, Any], expected: int) -> None:
    assert decode_threshold(rules, replace(glm, **change)).value == expected


def test_unknown_backend_names_the_known(rules: Rules, glm: Deployment) -> None:
    with pytest.raises(ValueError, match="FLASHMLA_SPARSE on SM90"):
        decode_threshold(rules, replace(glm, backend="NONESUCH"))


def test_the_indexer_has_its_own_threshold(glm: Deployment) -> None:
    assert indexer_threshold(replace(glm, speculative_tokens=2)).value == 3


def test_dense_limit_is_inclusive(rules: Rules, glm: Deployment) -> None:
    assert route(rules, glm, (2048, 0)) == "dense_mha"
    assert route(rules, glm, (2049, 0)) == "sparse_mqa"
    assert route(rules, glm, (1048, 1000)) == "dense_mha"
    assert route(rules, glm, (1048, 1001)) == "sparse_mqa"


def test_one_long_prefill_takes_the_short_ones_with_it(rules: Rules, glm: Deployment) -> None:
    assert route(rules, glm, (200, 0), (2049, 0), (300, 0)) == "sparse_mqa"


def test_decodes_do_not_count_for_the_limit(rules: Rules, glm: Deployment) -> None:
    assert route(rules, glm, (1, 90000), (200, 0)) == "dense_mha"
    assert route(rules, glm, (1, 9), (1, 9)) == "none"


@pytest.mark.parametrize(
    ("change", "requests", "expected"),
    [
        pytest.param({}, [(4096, 0)], "masked_mha", id="masked"),
        pytest.param({"cache": "e4m3"}, [(4096, 0)], "sparse_mqa", id="quantised-cache"),
        pytest.param({"device_family": 90}, [(4096, 0)], "sparse_mqa", id="hopper"),
        pytest.param({"flash_attention": 3}, [(4096, 0)], "sparse_mqa", id="flash-attention-3"),
        pytest.param({"dcp": 2}, [(4096, 0)], "sparse_mqa", id="dcp-has-no-masked"),
        pytest.param({"dcp": 2}, [(300, 0)], "dense_mha", id="dcp-has-dense"),
        pytest.param({"pcp": 2}, [(300, 0)], "dense_mha", id="pcp-has-dense"),
        pytest.param({"pcp": 2, "dcp": 2}, [(300, 0)], "sparse_mqa", id="pcp-and-dcp-have-no-dense"),
        pytest.param({"force_mqa": True}, [(4096, 0)], "sparse_mqa", id="force-mqa-masked"),
        pytest.param({"force_mqa": True}, [(300, 0)], "sparse_mqa", id="force-mqa-dense"),
        pytest.param({"hisparse": True}, [(300, 0)], "sparse_mqa", id="hisparse"),
        pytest.param({}, [(33024, 0)], "sparse_mqa", id="guard-beats-table"),
        pytest.param({}, [(32768, 0)], "masked_mha", id="guard-exactly-full"),
        pytest.param({}, [(16384, 0)] * 5, "sparse_mqa", id="batch-multiplies-the-mask"),
        pytest.param({"max_num_seqs": 4}, [(4096, 4096)], "masked_mha", id="context-interval"),
        pytest.param({}, [(2048, 6144)], "sparse_mqa", id="context-query-too-short"),
    ],
)
def test_route(
    rules: Rules, masked: Deployment, change: dict[str, Any], requests: list[tuple[int, int]], expected: str
) -> None:
    decision = decide_route(rules, replace(masked, **change), Batch.of(requests)).route
    assert decision.value == expected, decision


def test_capability_is_implementation_and_layer(glm: Deployment) -> None:
    rules = load_rules("vllm-0.33")
    table = {
        (implementation, layer): dense_capability(
            rules, replace(glm, implementation_supports_dense=implementation, layer_supports_dense=layer)
        ).value
        for implementation in (True, False)
        for layer in (True, False)
    }
    assert table == {(True, True): True, (True, False): False, (False, True): False, (False, False): False}
    before = load_rules("vllm-51298")
    assert dense_capability(before, replace(glm, layer_supports_dense=False)).value


def test_no_prefill_backend_degrades_unless_named(rules: Rules, glm: Deployment) -> None:
    none = replace(glm, prefill_backend_usable=False)
    assert route(rules, none, (300, 0)) == "sparse_mqa"
    with pytest.raises(ValueError, match="'FLASH_ATTN': expected a backend that supports this model"):
        prefill_backend(rules, replace(none, prefill_backend_named="FLASH_ATTN"))


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        ({}, "mtp", "MTP"),
        ({}, "shared", "shared"),
        ({"pcp": 2}, "full", "PCP"),
        ({"platform": "rocm"}, "full", "platform"),
        ({"layer_supports_dense": False}, "full", "layer declares"),
        ({"implementation_supports_dense": False}, "full", "implementation"),
    ],
    ids=["mtp", "shared", "pcp", "not-cuda", "layer-off", "implementation-off"],
)
def test_nothing_is_bound(rules: Rules, glm: Deployment, change: dict[str, Any], kind: Any, word: str) -> None:
    deployment = replace(glm, **change)
    binding = skip_binding(rules, deployment, layer="layers.3", kind=kind)
    assert binding.value == ""
    step = decide_route(rules, deployment, Batch.of([(300, 0)]))
    assert not decide_skip(rules, deployment, step, layer="layers.3", kind=kind).value
    assert word in " ".join((*binding.reasons, *dense_capability(rules, deployment).reasons))


def test_versions_of_the_incident(glm: Deployment) -> None:
    """(route decided, skip) for a fresh prompt of 512 tokens, version after version."""
    found = {}
    for version in ("vllm-47327", "vllm-48407", "vllm-50906", "vllm-51298", "vllm-52512", "vllm-53785", "vllm-0.33"):
        rules = load_rules(version)
        step = decide_route(rules, glm, Batch.of([(512, 0)]))
        found[version] = (
            step.route.value,
            decide_skip(rules, glm, step, layer="layers.3").value,
            rules.fused_runs_mha,
        )
    assert found == {
        "vllm-47327": ("dense_mha", False, False),
        "vllm-48407": ("dense_mha", False, False),
        "vllm-50906": ("dense_mha", False, False),
        "vllm-51298": ("dense_mha", True, False),
        "vllm-52512": ("sparse_mqa", False, False),
        "vllm-53785": ("dense_mha", True, True),
        "vllm-0.33": ("dense_mha", True, True),
    }


def test_the_generic_layer_skipped_before_the_fused_one(glm: Deployment) -> None:
    rules = load_rules("vllm-48407")
    generic = replace(glm, wrapper="generic")
    step = decide_route(rules, generic, Batch.of([(512, 0)]))
    assert decide_skip(rules, generic, step, layer="layers.3").value


def test_the_guard_came_after_masked_mha(glm: Deployment) -> None:
    before, after = load_rules("vllm-48770"), load_rules("vllm-50906")
    assert workspace_guard(before, 2, 32768).value
    assert "overruns" in workspace_guard(before, 2, 32768).reasons[0]
    assert not workspace_guard(after, 2, 32768).value
    assert not workspace_guard(load_rules("vllm-47327"), 1, 128).value
    assert not workspace_guard(after, 1, 128, query_lens_on_host=False).value


def test_mask_shape_is_aligned(rules: Rules) -> None:
    assert rules.mask_workspace is not None
    assert mask_shape(rules.mask_workspace, 2, 129, 129) == (2, 256, 8)
    assert mask_shape(rules.mask_workspace, 2, 129, 129, reserve=True) == (2, 256, 8)
    old = load_rules("vllm-50906").mask_workspace
    assert old is not None
    assert mask_shape(old, 2, 129, 129) == (2, 256, 5)


def test_global_mask_has_its_own_check(rules: Rules) -> None:
    assert workspace_guard(rules, 1, 32768, 16384).value
    assert not global_mask_fits(rules, 1, 32768, 49152).value
    assert global_mask_fits(rules, 1, 4096, 8192).value


def test_gates_by_provider(glm: Deployment) -> None:
    rules = load_rules("attnoracle")
    ours = replace(glm, provider="attnoracle-triton", device_family=90, flash_attention=None)
    assert masked_gate(rules, ours).value
    assert not masked_gate(rules, replace(ours, qk_nope_head_dim=256)).value
    assert not masked_gate(rules, replace(ours, provider="nobody")).value
    nope = replace(glm, cache="model", qk_nope_head_dim=256, qk_rope_head_dim=0)
    assert masked_gate(load_rules("vllm-0.33"), nope).value
    assert not masked_gate(load_rules("vllm-53785"), nope).value


def test_empty_context_list_means_never(rules: Rules, glm: Deployment) -> None:
    one = replace(glm, tensor_parallel=1, local_heads=64)
    assert masked_policy(rules, one, query_len=4096, seq_len=4096, has_context=False).value
    assert not masked_policy(rules, one, query_len=4096, seq_len=4096, has_context=True).value


@pytest.mark.parametrize(
    ("version", "change", "expected"),
    [
        pytest.param("vllm-0.33", {}, 65536, id="cap"),
        pytest.param("vllm-0.33", {"max_num_seqs": 4}, 8192, id="top-k-term"),
        pytest.param("vllm-0.33", {"max_model_len": 1024, "max_num_seqs": 8}, 8192, id="model-length-term"),
        pytest.param("vllm-0.33", {"index_topk": 1, "max_num_seqs": 8}, 64, id="one-block-floor"),
        pytest.param("vllm-47327", {"max_num_seqs": 2048}, 131072, id="july-floor-beats-the-cap"),
        pytest.param("vllm-47327", {"index_topk": 1, "max_num_seqs": 8}, 512, id="july-floor"),
        pytest.param("vllm-0.33", {"dcp": 3, "max_num_seqs": 1}, 2112, id="dcp-rounds-up"),
    ],
)
def test_context_rows(glm: Deployment, version: str, change: dict[str, Any], expected: int) -> None:
    assert context_rows(load_rules(version), replace(glm, **change)).value == expected


def test_dcp_needs_an_extra_shard() -> None:
    assert context_buffer_rows(65536, 1) == 65536
    assert context_buffer_rows(65536, 4) == 65536 + 16384
