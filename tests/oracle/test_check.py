"""``check`` on hostile implementations: each misdeed has its own verdict, and the next check finds a clean world."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle import check as module
from attnoracle.oracle.calling.globals import GlobalState
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import AGAIN, FRESH_SEEDS, SEED_STRIDE, check
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.judge.findings import Judgement
from attnoracle.oracle.value_range import leaves_range
from attnoracle.oracle.verdict import Verdict
from attnoracle.reference import dense_mha, topk_select

CASE = Case(operator="dense_mha", geometry="tiny", heads=2, q_lens=(6, 3), k_lens=(20, 3), seed=1)
CONTRACT = Contract(probabilities="fp32")


def right(q, k, v, cu_q, cu_k, *, scale, causal=True):
    """The reference, rounded once at the end and written into memory of its own."""
    out, lse = dense_mha(q.double(), k.double(), v.double(), cu_q, cu_k, scale=scale, causal=causal)
    return torch.empty(out.shape, dtype=q.dtype).copy_(out), torch.empty(lse.shape).copy_(lse)


def implementation(function: Callable[..., Any], **contract: Any) -> Implementation:
    return Implementation("dense_mha/test", replace(CONTRACT, **contract), lambda facts: None, lambda: function)


def judged(body: Callable[..., Any], **contract: Any) -> Verdict:
    """The verdict on ``body(out, lse, inputs)``, which gets the right answer and the inputs."""

    def function(**inputs):
        return body(*right(**inputs), inputs)

    return check(CASE, implementation(function, **contract))


def assert_fails(verdict: Verdict, check_: str, message: str) -> None:
    assert verdict.status == "FAIL", verdict
    assert [one.check for one in verdict.findings][:1] == [check_]
    assert message in verdict.findings[0].message
    assert verdict.reason == verdict.findings[0].message and verdict.findings[0].proved


def test_a_right_implementation_passes():
    verdict = check(CASE, implementation(right))
    assert (verdict.status, verdict.reason, verdict.findings) == ("PASS", "", ())
    assert 0 < verdict.measures["element"] < 1 and verdict.seconds > 0 and verdict.device == "cpu"


def test_what_it_raises_is_an_error_in_one_line():
    def body(out, lse, inputs):
        raise ZeroDivisionError("first line\nsecond line")

    verdict = judged(body)
    assert (verdict.status, verdict.reason) == ("ERROR", "ZeroDivisionError: first line")


def test_what_loading_raises_is_its_own_as_well():
    def load():
        raise ImportError("no such kernel")

    broken = Implementation("dense_mha/test", CONTRACT, lambda facts: None, load)
    assert check(CASE, broken).reason == "ImportError: no such kernel"


def test_a_reason_not_to_run_is_passed_on_and_nothing_runs():
    refusing = Implementation("dense_mha/test", CONTRACT, lambda facts: "needs a moon", lambda: pytest.fail("loaded"))
    verdict = check(CASE, refusing)
    assert (verdict.status, verdict.reason, verdict.judged) == ("UNSUPPORTED", "needs a moon", False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda out, lse, inputs: (out,), "returned 1 output, expected a tuple of out, lse"),
        (lambda out, lse, inputs: (out, lse, lse), "returned 3 outputs"),
        (lambda out, lse, inputs: out, "returned Tensor, expected a tuple"),
        (lambda out, lse, inputs: [out, lse], "returned list, expected a tuple"),
        (lambda out, lse, inputs: None, "returned NoneType, expected a tuple"),
        (lambda out, lse, inputs: (out.tolist(), lse), "out is a list, expected a tensor"),
        (lambda out, lse, inputs: (out.transpose(0, 1), lse), "out has shape [2, 9, 32], expected [9, 2, 32]"),
        (lambda out, lse, inputs: (out, lse[..., None]), "lse has shape [9, 2, 1], expected [9, 2]"),
        (lambda out, lse, inputs: (out.float(), lse), "out has dtype torch.float32, expected torch.bfloat16"),
        (lambda out, lse, inputs: (out, lse.half()), "lse has dtype torch.float16, expected torch.float32 or"),
        (lambda out, lse, inputs: (out.to("meta"), lse), "out is on meta, expected cpu"),
        (lambda out, lse, inputs: (out.to_sparse(), lse), "out has layout torch.sparse_coo, expected a strided tensor"),
        (lambda out, lse, inputs: (out, lse + 0j), "lse has dtype torch.complex64, expected"),
    ],
    ids=[
        "too-few", "too-many", "no-tuple", "list", "none", "no-tensor", "transposed", "extra-axis", "dtype",
        "lse-dtype", "device", "layout", "complex",
    ],
)  # fmt: skip
def test_structure(body, message):
    assert_fails(judged(body), "structure", message)


@pytest.mark.filterwarnings("error")
def test_outputs_that_autograd_follows_are_numbers_like_others():
    assert judged(lambda out, lse, inputs: (out.requires_grad_(), lse.requires_grad_())).status == "PASS"


def test_the_lse_is_not_expected_of_one_who_declares_none():
    assert judged(lambda out, lse, inputs: (out,), lse_base=None).status == "PASS"
    assert_fails(judged(lambda out, lse, inputs: (out, lse), lse_base=None), "structure", "returned 2 outputs")


@pytest.mark.parametrize("name", ["q", "k", "v", "cu_q", "cu_k"])
def test_changed_inputs(name):
    def body(out, lse, inputs):
        inputs[name].flatten()[0:0].zero_()  # writing nothing is no change
        inputs[name].view(-1)[:1].add_(1)
        return out, lse

    assert_fails(judged(body), "structure", f"changed its inputs: {name}")


def test_inputs_changed_and_put_back_are_unchanged():
    def body(out, lse, inputs):
        before = inputs["q"].clone()
        inputs["q"].zero_()
        inputs["q"].copy_(before)
        return out, lse

    assert judged(body).status == "PASS"


@pytest.mark.parametrize("step", [-1, 0], ids=["before", "after"])
def test_a_write_outside_its_own_allocation(step):
    def body(out, lse, inputs):
        start = out.storage_offset() + (out.numel() if step == 0 else -1)
        out.as_strided((1,), (1,), start).fill_(1.0)
        return out, lse

    place = "after" if step == 0 else "before"
    assert_fails(judged(body), "memory", f"2 guard byte(s) {place} the tensor overwritten")


def test_a_write_outside_an_input():
    def body(out, lse, inputs):
        q = inputs["q"]
        q.as_strided((1,), (1,), q.storage_offset() + q.numel()).fill_(1.0)
        return out, lse

    assert_fails(judged(body), "memory", "q: 2 guard byte(s) after the tensor overwritten")


def test_rows_left_unwritten():
    def body(out, lse, inputs):
        mine = torch.empty(out.shape, dtype=out.dtype)
        mine[:-1] = out[:-1]
        return mine, lse

    verdict = judged(body)
    assert verdict.status == "FAIL"
    structure = next(one for one in verdict.findings if one.check == "structure")
    assert structure.message == "NaN or infinity where the reference has another value"
    assert structure.where == "64 of 576 elements; queries 8; heads all; columns all"
    assert any(one.check == "rerun" for one in verdict.findings)


def test_adding_to_what_the_memory_held():
    def body(out, lse, inputs):
        mine = torch.empty(out.shape, dtype=out.dtype)
        # NaN is dropped, so the first run, in memory full of NaN, is right.
        return (out + mine.nan_to_num(0.0)).to(out.dtype), lse

    assert_fails(judged(body), "rerun", "out differs between two runs")


@pytest.mark.parametrize("declared", [True, False], ids=["declared-deterministic", "declared-not"])
def test_two_runs_that_differ(declared):
    calls = []

    def body(out, lse, inputs):
        calls.append(1)
        bits = out.view(torch.int16)
        bits[0, 0, 0] += len(calls) % 2  # one unit in the last place
        return out, lse

    verdict = judged(body, deterministic=declared, probabilities="bf16")
    if declared:
        assert_fails(verdict, "rerun", "out differs between two runs at 1 of 576 elements")
    else:
        assert verdict.status == "PASS"


def test_of_two_runs_that_may_differ_both_are_judged():
    calls = []

    def body(out, lse, inputs):
        calls.append(1)
        return (out if len(calls) % 2 else out + 1), lse

    assert_fails(judged(body, deterministic=False), "element", "an element is off by")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "changed torch's default dtype"),
        (lambda: torch.manual_seed(5), "changed the state of torch's random generator"),
        (lambda: torch.rand(1), "changed the state of torch's random generator"),
        (lambda: torch.set_float32_matmul_precision("medium"), "changed torch's float32 matmul precision (TF32)"),
        (
            lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
            "changed cuDNN's TF32 switch",
        ),
        (lambda: torch.set_grad_enabled(False), "changed torch's grad mode"),
    ],
    ids=["default-dtype", "seeded", "drawn", "matmul-precision", "cudnn-tf32", "grad-mode"],
)
def test_changed_global_state_is_named_and_put_back(change, message):
    before = GlobalState.take()

    def body(out, lse, inputs):
        change()
        return out, lse

    assert_fails(judged(body), "structure", message)
    assert before.restore() == []


def test_global_state_is_put_back_after_an_exception():
    before = GlobalState.take()

    def body(out, lse, inputs):
        torch.set_default_dtype(torch.float64)
        raise RuntimeError("half way")

    assert judged(body).status == "ERROR"
    assert before.restore() == []


def test_a_view_of_an_input_is_a_wrong_answer_and_no_crash():
    def body(out, lse, inputs):
        return inputs["v"][: len(out)], lse

    verdict = judged(body)
    assert verdict.status == "FAIL" and verdict.findings[0].check in ("element", "structure")


@pytest.mark.parametrize(
    ("body", "checks"),
    [
        (lambda out, lse, inputs: (torch.zeros_like(out), lse), {"element", "bias"}),
        (lambda out, lse, inputs: (out * 1.01, lse), {"element"}),
        (lambda out, lse, inputs: (out.roll(1, 1), lse), {"element"}),
        (lambda out, lse, inputs: (out, lse / math.log(2.0)), {"lse"}),
        (lambda out, lse, inputs: (torch.where(torch.arange(32) == 3, math.nan, out), lse), {"structure"}),
    ],
    ids=["zeros", "scaled", "heads-exchanged", "lse-base-2", "nan-column"],
)
def test_wrong_numbers(body, checks):
    def rounded(out, lse, inputs):
        return tuple(x.to(y.dtype) for x, y in zip(body(out, lse, inputs), (out, lse), strict=True))

    verdict = judged(rounded)
    assert verdict.status == "FAIL"
    assert checks <= {one.check for one in verdict.findings}


def test_a_case_that_cannot_be_is_the_callers_fault():
    with pytest.raises(BadInput, match="kind 'ramp' does not fit dense_mha"):
        check(replace(CASE, kind="ramp"), implementation(right))
    with pytest.raises(BadInput, match="unknown geometry 'tinny'; nearest: tiny"):
        check(replace(CASE, geometry="tinny"), implementation(right))


def test_an_input_without_power_is_weak_and_says_for_what():
    case = Case(operator="topk_select", geometry="tiny", heads=1, q_lens=(1,), k_lens=(40,), topk=4, kind="ramp")

    def result(scores, ks, ke, *, k):
        got = topk_select(scores, ks, ke, k=k)
        return ((got[0] if isinstance(got, tuple) else got).int(),)

    verdict = check(case, Implementation("topk_select/test", CONTRACT, lambda facts: None, lambda: result))
    assert verdict.status == "WEAK"
    assert verdict.reason.startswith("this input cannot tell the answer from: the ")


# A statistic that is neither likely nor impossible is decided on fresh seeds.


@pytest.fixture
def marginal(monkeypatch):
    """A judge that is suspicious on chosen seeds, by rank: 0 is the case's own, 1 to FRESH_SEEDS the fresh ones."""
    asked = []

    def choose(suspicious: set[int], failing: set[int] = frozenset(), raising: set[int] = frozenset()):
        def fake(case, implementation, device, draw=None, *, power, explain=False):
            rank = (case.seed - CASE.seed) // SEED_STRIDE
            asked.append((rank, power))
            if rank in raising:
                raise module.Raised("RuntimeError: late")
            judgement = Judgement()
            p = 1e-9 if rank in failing else 1e-4 if rank in suspicious else 0.5
            judgement.statistical("row", "rows are noisy", p, 1e-7, 1e-3)
            return judgement

        monkeypatch.setattr(module, "_judged", fake)
        return check(CASE, implementation(right)), asked

    return choose


def test_no_suspicion_asks_for_no_fresh_seed(marginal):
    verdict, asked = marginal(set())
    assert verdict.status == "PASS" and asked == [(0, True)] and "suspect_seeds" not in verdict.measures


@pytest.mark.parametrize("again", range(AGAIN + 2))
def test_a_suspicion_is_decided_by_how_often_it_comes_back(marginal, again):
    verdict, asked = marginal({0, *range(3, 3 + again)})
    assert asked == [(0, True), *((rank, False) for rank in range(1, FRESH_SEEDS + 1))]
    assert verdict.measures["suspect_seeds"] == again
    if again >= AGAIN:
        assert verdict.status == "FAIL" and not verdict.proved
        assert verdict.reason == f"rows are noisy, and so on {again} of {FRESH_SEEDS} fresh seeds"
        assert verdict.findings[0].p_value == 1e-4
    else:
        assert (verdict.status, verdict.findings) == ("PASS", ())


def test_a_failure_on_a_fresh_seed_counts_as_one(marginal):
    verdict, _ = marginal({0}, failing={4})
    assert verdict.status == "PASS" and verdict.measures["suspect_seeds"] == 1


def test_a_clear_failure_asks_no_fresh_seed(marginal):
    verdict, asked = marginal(set(), failing={0})
    assert verdict.status == "FAIL" and len(asked) == 1


def test_an_exception_on_a_fresh_seed_is_an_error(marginal):
    verdict, _ = marginal({0}, raising={2})
    assert (verdict.status, verdict.reason) == ("ERROR", "RuntimeError: late")


def test_the_first_import_of_torchs_compiler_is_no_change_of_global_state():
    """It wraps torch.manual_seed; a kernel whose first run compiles would be blamed for it. In a fresh process."""
    code = (
        "from attnoracle.oracle.calling.globals import GlobalState\n"
        "import torch\n"
        "state = GlobalState.take()\n"
        "import torch._dynamo\n"
        "print(state.restore())\n"
        "before = GlobalState.take()\n"
        "torch.manual_seed = lambda seed: None\n"
        "print(before.restore())\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["[]", "['torch.manual_seed']"]


def test_a_contract_of_less_range_is_not_put_to_values_beyond_it():
    case = Case.parse("dense_mha:glm-5:h2:q3:k9:bf16:powers:contiguous:-:s0")
    for field in ("partials", "output", "accumulator"):
        assert "in fp16" in leaves_range(case, Contract(**{field: "fp16"}))
    assert leaves_range(case, Contract(partials="bf16", probabilities="fp16", dequantised="fp16")) is None
    assert leaves_range(replace(case, dtype="fp16"), Contract(output="fp16")) is None
    assert leaves_range(replace(case, kind="randn"), Contract(partials="fp16")) is None
    assert check(replace(CASE, kind="powers"), implementation(right, partials="fp16")).status == "UNSUPPORTED"
    assert check(replace(CASE, kind="powers"), implementation(right)).status == "PASS"
