"""Race tests: two callers of one kernel, planned in turn and on two threads; two streams, which need a GPU."""

import time
from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.optimized.torch_kernels.merge import merge_lse
from attnoracle.oracle.config import load
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.properties import siblings
from attnoracle.oracle.properties.call import Call
from attnoracle.oracle.properties.cases import property_cases
from attnoracle.oracle.properties.run import tried
from attnoracle.oracle.properties.table import property_named

ALIKE = Contract(batch_invariant=True)
SCRATCH: dict[str, torch.Tensor] = {}


def through_shared_scratch(out_a, lse_a, out_b, lse_b):
    """A workspace that every caller shares: filled, and read again once others had their turn."""
    SCRATCH["lse_b"] = lse_b.clone()
    time.sleep(0.02)
    return merge_lse(out_a, lse_a, out_b, SCRATCH["lse_b"])


def plan_kept_in_one_place(**inputs):
    """The plan of the last call is the plan of all."""
    SCRATCH["plan"] = inputs
    return lambda: merge_lse(**SCRATCH["plan"])


BUFFER: dict[tuple, torch.Tensor] = {}


def one_output_buffer(out_a, lse_a, out_b, lse_b):
    out, lse = merge_lse(out_a, lse_a, out_b, lse_b)
    kept = BUFFER.setdefault(tuple(out.shape), torch.empty_like(out))
    return kept.copy_(out), lse


def looked_at(property_name, function, plan=None, device="cpu"):
    one = Implementation("merge_lse/mine", ALIKE, lambda facts: None, lambda: function, plan)
    return tried(property_named(property_name), Call(property_cases("merge_lse")[0], one, device))


def test_callers_that_share_nothing_do_not_meet():
    found = looked_at("two-callers", merge_lse)
    assert (found.status, found.ratio) == ("held", 0.0)
    assert found.claims == 2 * 2 + 2 * 3 * 2, "two planned calls and three rounds of two threads, out and lse each"


@pytest.mark.parametrize(
    ("function", "plan", "told"),
    [
        (through_shared_scratch, None, "of two"),
        (merge_lse, lambda: plan_kept_in_one_place, "of the first of two planned calls"),
        (one_output_buffer, None, "of the first of two planned calls"),
    ],
    ids=["scratch", "plan", "output buffer"],
)
def test_what_two_callers_share_is_seen(function, plan, told):
    found = looked_at("two-callers", function, plan)
    assert found.status == "failed" and told in found.reason


def test_called_alone_the_shared_scratch_is_right():
    assert looked_at("repeat", through_shared_scratch).status == "held"


def test_a_run_that_differs_from_the_one_before_is_seen():
    calls = []

    def drifts(out_a, lse_a, out_b, lse_b):
        out, lse = merge_lse(out_a, lse_a, out_b, lse_b)
        calls.append(1)
        return (out, lse) if len(calls) % 3 else (out.roll(1, 0), lse)

    assert looked_at("repeat", drifts).status == "failed"


def test_two_streams_ask_for_a_gpu():
    found = looked_at("two-streams", merge_lse)
    assert (found.status, found.reason) == ("not applicable", "two streams need a CUDA device")


@pytest.mark.gpu
def test_two_streams_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("two streams need a CUDA device")
    assert looked_at("two-streams", merge_lse, device="cuda").status == "held"
    assert looked_at("two-streams", one_output_buffer, device="cuda").status == "failed"


def test_triton_s_interpreter_is_not_called_from_two_threads(outcome):
    found = outcome("two-callers", "merge_lse/triton")
    assert (found.status, found.reason) == ("held", ""), "planned calls are looked at, threads are not"


def test_what_nobody_promises_may_differ_between_callers():
    """DeepGEMM's scores outside the windows are what the memory held."""
    right = find("indexer_scores/torch")

    def unclean(q, k, k_scale, weights, ks, ke):
        (scores,) = right.load()(q, k, k_scale, weights, ks, ke)
        return (torch.where(torch.isneginf(scores), torch.randn_like(scores), scores),)

    contract = replace(right.contract, outside_window="undefined")
    one = Implementation("indexer_scores/mine", contract, lambda facts: None, lambda: unclean)
    case = property_cases("indexer_scores")[0]
    assert tried(property_named("two-callers"), Call(case, one, "cpu")).status == "held"
    promised = replace(one, contract=right.contract)
    assert tried(property_named("two-callers"), Call(case, promised, "cpu")).status != "held"


@pytest.mark.parametrize("name", ["all-selected", "absorbed"])
def test_a_dense_kernel_is_asked_for_the_dims_that_it_would_get(name, monkeypatch):
    """Latent rows as keys are wider than a model's heads: a kernel for those alone is left out."""
    asked = []
    right = find("sparse_mqa/gather")

    def supports(facts):
        asked.append((facts["d"], facts["v"]))
        return "other dims"

    narrow = Implementation("dense_mha/gather", ALIKE, supports, lambda: None)
    monkeypatch.setattr(siblings.known, "names", lambda: ("dense_mha/gather",))
    monkeypatch.setattr(siblings.known, "find", lambda name: narrow)
    case = property_cases("sparse_mqa")[0]
    assert tried(property_named(name), Call(case, right, "cpu")).status == "held"
    rank, rope = load(case.geometry).kv_lora_rank, load(case.geometry).qk_rope_head_dim
    value = rank if name == "all-selected" else rank // 2
    assert set(asked) == {(value + rope, value)}
