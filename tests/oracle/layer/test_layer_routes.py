"""Routes agree with each other, and with the formula, wherever theory says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attnoracle.oracle.layer.rig import Rig, RigSizes, StepResult
from attnoracle.reference.mla import absorb_query, project_output
from attnoracle.reference.routing import Deployment, Rules

KINDS = ("full", "shared", "full")
SIZES = RigSizes(kinds=KINDS)
TOLERANCE = 1e-10  # fp64 over at most 64 keys of unit size: some 64 * 2^-53 ~ 1e-14 with room for the projections


def truth(rig: Rig, request: int, length: int, layer: int) -> Tensor:
    """Output [s, h, v] of a whole sequence by the formula: exact scores, exact top-k, one softmax."""
    parts = rig.layers[layer].parts  # type: ignore[attr-defined]
    positions = torch.arange(length)
    own = rig.sequence(request, layer, 0, length)
    source = max(place for place, kind in enumerate(KINDS[: layer + 1]) if kind == "full")
    index = rig.sequence(request, source, 0, length)
    dots = torch.einsum("sie,te->sit", index["index_q"], index["index_k"]).relu()
    scores = torch.einsum("sit,si->st", dots, index["index_weights"])
    causal = positions[None, :] <= positions[:, None]
    scores = scores.masked_fill(~causal, -torch.inf)
    topk = rig.deployment.index_topk
    chosen = torch.zeros(length, length, dtype=torch.bool)
    # ReLU makes exact ties at zero; the reference gives them to the lowest position.
    best = scores.argsort(dim=-1, descending=True, stable=True)[:, :topk]
    chosen.scatter_(1, best, True)
    allowed = torch.where(positions[:, None] < topk, causal, chosen & causal)
    nope = rig.deployment.qk_nope_head_dim
    q = torch.cat((own["q"][..., :nope], rig.rotate(own["q"][..., nope:], positions)), -1)
    rows = torch.cat((own["kv_c"], rig.rotate(own["k_pe"], positions)), -1)
    logits = torch.einsum("shw,tw->sht", absorb_query(q, parts.w_uk), rows) * parts.scale
    weights = logits.masked_fill(~allowed[:, None, :], -torch.inf).softmax(-1)
    return project_output(torch.einsum("sht,tc->shc", weights, own["kv_c"]), parts.w_uv)


def check(rig: Rig, result: StepResult, *, route: str) -> None:
    assert result.violations == ()
    executed = {event.operator for trace in result.traces for event in trace.events if hasattr(event, "operator")}
    assert route in executed
    for request, rows in zip(result.step.ids, result.step.batch.requests, strict=True):
        for layer in range(len(KINDS)):
            expected = truth(rig, request, rows.seq_len, layer)[rows.context_len :]
            torch.testing.assert_close(result.output(request, layer), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("topk", [4, 8, 16])
@pytest.mark.parametrize("wrapper", ["fused", "generic"])
@pytest.mark.parametrize(
    ("change", "lengths", "route"),
    [
        pytest.param({}, (3, 1, 0), "dense_mha", id="dense"),
        pytest.param({"force_mqa": True}, (3, 1, 0), "sparse_mqa", id="sparse-short"),
        pytest.param({}, (20, 3, 9), "masked_mha", id="masked"),
        pytest.param({"force_mqa": True}, (20, 3, 9), "sparse_mqa", id="sparse-long"),
        pytest.param({"dcp": 2}, (20, 3, 9), "sparse_mqa", id="dcp-2"),
        pytest.param({"dcp": 3, "cp_interleave": 4}, (20, 3, 9), "sparse_mqa", id="dcp-3-interleaved"),
        pytest.param({"dcp": 2}, (3, 1, 0), "dense_mha", id="dcp-dense"),
        pytest.param({"pcp": 2}, (20, 3, 9), "masked_mha", id="pcp-masked"),
        pytest.param({"pcp": 2, "dcp": 2}, (3, 1, 0), "sparse_mqa", id="pcp-and-dcp"),
    ],
)
def test_pure_prefill(
    rules: Rules,
    deployment: Deployment,
    wrapper: str,
    topk: int,
    change: dict[str, object],
    lengths: Sequence[int],
    route: str,
) -> None:
    """Three requests of so many tokens more than top-k, or fewer where the batch is short."""
    long = max(lengths) > 3
    deployment = replace(deployment, wrapper=wrapper, index_topk=topk, **change)  # type: ignore[arg-type]
    rig = Rig(rules, deployment, SIZES)
    counts = [max(topk + length if long else topk - length, 3) for length in lengths]
    check(rig, rig.step(list(enumerate(counts, 5))), route=route)


@pytest.mark.parametrize("wrapper", ["fused", "generic"])
@pytest.mark.parametrize("seqs", [1, 4], ids=["many-chunks", "one-chunk"])
@pytest.mark.parametrize("force", [False, True], ids=["masked", "mqa"])
def test_extends_over_chunked_context(
    rules: Rules, deployment: Deployment, wrapper: str, seqs: int, force: bool
) -> None:
    """Chunked context with LSE merge is the same as one pass, for selections on either side only as well."""
    deployment = replace(deployment, wrapper=wrapper, max_num_seqs=seqs, force_mqa=force)  # type: ignore[arg-type]
    rig = Rig(rules, deployment, SIZES)
    assert rig.step([(1, 13), (2, 30), (3, 5)]).violations == ()
    route = "sparse_mqa" if force else "masked_mha"
    check(rig, rig.step([(1, 6), (2, 9), (3, 3), (4, 17)]), route=route)
    check(rig, rig.step([(1, 1), (2, 1), (3, 2), (4, 11)]), route=route)


def test_dense_over_context(rules: Rules, deployment: Deployment) -> None:
    rig = Rig(rules, replace(deployment, index_topk=32), SIZES)
    rig.step([(1, 7), (2, 12), (3, 3)])
    result = rig.step([(1, 5), (2, 20), (3, 29)])
    check(rig, result, route="dense_mha")


def test_decode_steps_and_mixed_batches(rules: Rules, deployment: Deployment) -> None:
    rig = Rig(rules, deployment, SIZES)
    rig.step([(1, 10), (2, 3), (3, 25)])
    check(rig, rig.step([(1, 1), (2, 1), (3, 1)], decoding=True), route="sparse_mqa")
    check(rig, rig.step([(1, 2), (2, 2), (3, 2)], decoding=True), route="sparse_mqa")
    mixed = rig.step([(4, 9), (1, 1), (2, 1), (5, 12)])
    assert mixed.step.ids[:2] == (1, 2)
    check(rig, mixed, route="masked_mha")


def test_preempted_requests_start_over(rules: Rules, deployment: Deployment) -> None:
    rig = Rig(rules, deployment, SIZES)
    rig.step([(1, 10), (2, 3), (3, 25)])
    rig.preempt(3)
    check(rig, rig.step([(4, 26), (1, 5), (2, 5)]), route="masked_mha")
    rig.preempt(1)
    check(rig, rig.step([(3, 26), (1, 12), (2, 2)]), route="masked_mha")


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL"])
@pytest.mark.parametrize("capturing", [False, True], ids=["eager", "capturing"])
def test_graph_modes_change_no_output(rules: Rules, deployment: Deployment, mode: str, capturing: bool) -> None:
    rig = Rig(rules, deployment, SIZES)
    result = rig.step([(1, 8), (2, 5), (3, 3)], mode=mode, capturing=capturing)  # type: ignore[arg-type]
    check(rig, result, route="dense_mha")
    scored = mode == "FULL" or capturing
    assert all(
        any(getattr(event, "operator", "") == "topk_select" for event in trace.events) is scored
        for trace in result.traces
        if trace.kind == "full"
    )


@pytest.mark.parametrize("prepared", [False, True], ids=["not-prepared", "prepared"])
@pytest.mark.parametrize("packed", [False, True], ids=["model-dtype", "e4m3"])
def test_the_mha_branch_rotates_exactly_once(
    rules: Rules, deployment: Deployment, packed: bool, prepared: bool
) -> None:
    """Four cells; the dense branch sees unquantised new keys, so its output is exact in every one."""
    sizes = replace(
        SIZES,
        dtype=torch.float64,
        latent_dtype=torch.float8_e4m3fn if packed else torch.float64,
        k_scale=1 / 64 if packed else 1.0,
        q_scale=1 / 32 if packed else None,
    )
    rig = Rig(rules, replace(deployment, cache="e4m3" if packed else "model"), sizes)
    result = rig.step([(1, 8), (2, 5), (3, 3)], capturing=prepared)
    check(rig, result, route="dense_mha")


def test_an_e4m3_cache_costs_its_rounding(rules: Rules, deployment: Deployment) -> None:
    """Packed queries and a quantised cache: right up to the rounding of e4m3, wrong by more if a scale is lost."""
    sizes = replace(SIZES, latent_dtype=torch.float8_e4m3fn, index_dtype=torch.float64, k_scale=1 / 64, q_scale=1 / 32)
    rig = Rig(rules, replace(deployment, cache="e4m3", force_mqa=True), sizes)
    result = rig.step([(1, 20), (2, 9), (3, 30)])
    assert result.violations == ()
    for request, length in ((1, 20), (2, 9), (3, 30)):
        expected = truth(rig, request, length, 0)
        error = (result.output(request, 0) - expected).norm() / expected.norm()
        assert 1e-4 < error < 0.1  # relative rounding of e4m3 is at most 2^-4 an element


def test_e4m3_indexer_keys_carry_their_scales(rules: Rules, deployment: Deployment) -> None:
    """Below top-k nothing depends on scores, beyond it the selections nearly agree."""
    rig = Rig(rules, deployment, replace(SIZES, index_dtype=torch.float8_e4m3fn))
    result = rig.step([(1, 8), (2, 30), (3, 5)])
    assert result.violations == ()
    exact = Rig(rules, deployment, SIZES).step([(1, 8), (2, 30), (3, 5)])
    torch.testing.assert_close(result.output(1), exact.output(1), rtol=TOLERANCE, atol=TOLERANCE)
    read = [next(e for e in r.traces[0].events if hasattr(e, "indices")).indices for r in (result, exact)]
    shared = sum(len(set(a.tolist()) & set(b.tolist())) for a, b in zip(*read, strict=True))
    assert shared > 0.9 * sum(len(set(row.tolist())) for row in read[0])


def test_a_draft_layer_never_skips(rules: Rules, deployment: Deployment) -> None:
    result = Rig(rules, deployment, RigSizes(kinds=("full", "mtp"))).step([(1, 8), (2, 5), (3, 3)])
    assert result.violations == ()
    scored = [any(getattr(e, "operator", "") == "topk_select" for e in trace.events) for trace in result.traces]
    assert scored == [False, True]


def test_a_dummy_run_touches_nothing(rules: Rules, deployment: Deployment) -> None:
    rig = Rig(rules, deployment, SIZES)
    result = rig.step([(1, 8), (2, 5), (3, 3)])
    before = rig.buffer.indices.clone()
    out, trace = rig.layers[0].forward(rig.inputs(result.step, 0), None)
    assert trace.dummy
    assert trace.events == []
    assert out.shape == (16, 2, 8)
    assert not out.any()
    assert torch.equal(rig.buffer.indices, before)


def test_bf16_layers_stay_near_the_formula(rules: Rules, deployment: Deployment) -> None:
    sizes = replace(SIZES, dtype=torch.bfloat16, latent_dtype=torch.bfloat16, index_dtype=torch.bfloat16)
    for force in (False, True):
        rig = Rig(rules, replace(deployment, force_mqa=force), sizes)
        result = rig.step([(1, 8), (2, 5), (3, 3)])
        assert result.violations == ()
        wide = Rig(rules, deployment, SIZES).step([(1, 8), (2, 5), (3, 3)])
        error = (result.outputs[0].double() - wide.outputs[0]).norm() / wide.outputs[0].norm()
        assert error < 2**-5  # a few roundings of bf16, 2^-9 each, on values of order one
