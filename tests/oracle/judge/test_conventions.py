"""The convention audit: each hypothesis names the fault of its kind, and nothing else."""

from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.faults import FAULTS, fault
from attnoracle.oracle.judge.conventions import HYPOTHESES

DENSE = "dense_mha:tiny:h2:q5,3:k3,9:bf16:randn:contiguous:-:s1"
SQUARE = "dense_mha:tiny:h2:q9,3:k20,9:bf16:wide:contiguous:-:s1"
MASKED = "masked_mha:tiny:h2:q12:k70:top20:bf16:randn:contiguous:empty-rows:s1"
SPARSE = "sparse_mqa:tiny:h4:q5,3:k40,20:top24:bf16:randn:contiguous:{}:s1"
TOPK = "topk_select:tiny:h1:q4,5:k90,60:top17:fp32:{}:contiguous:-:s1"
MERGE = "merge_lse:tiny:h3:q7:k7:bf16:wide:contiguous:-:s1"

#: Fault, the case that shows it.
SHOWN = {
    "lse-base-2": SPARSE.format("-"),
    "lse-natural-though-base-2-declared": SPARSE.format("-"),
    "merge-base-2-lse-as-natural": MERGE,
    "merge-lse-in-base-2": MERGE,
    "lse-stored-head-major": SQUARE,
    "empty-row-lse-plus-inf": DENSE,
    "lse-minus-inf-though-plus-inf-declared": DENSE,
    "lse-both-base-2-and-plus-inf": DENSE,
    "empty-row-lse-zero": MASKED,
    "empty-row-lse-finite": SPARSE.format("empty-rows"),
    "exp2-without-log2e": SPARSE.format("-"),
    "scale-from-latent-width": SPARSE.format("-"),
    "causal-top-left": SQUARE,
    "mask-bits-reversed-in-word": MASKED,
    "mask-bits-reversed-in-byte": MASKED,
    "sink-in-base-2": SPARSE.format("sink"),
    "request-local-index-as-physical": SPARSE.format("poison-stale"),
    "indices-counted-from-one": SPARSE.format("poison-stale"),
    "negative-index-wraps": SPARSE.format("invalid+poison-stale"),
    "invalid-maps-to-row-0": SPARSE.format("invalid+poison-stale"),
    "index-past-end-clamped": SPARSE.format("invalid+poison-stale"),
    "duplicates-collapsed": SPARSE.format("duplicates"),
    "lengths-ignored": SPARSE.format("lengths+poison-stale"),
    "indices-absolute": TOPK.format("randn"),
    "nan-ranks-lowest": TOPK.format("nan"),
}


def _verdict(name, case):
    faulty = fault(name)
    return check(Case.parse(case.replace(case.split(":")[0], faulty.operator)), faulty.implementation())


@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_of_convention_is_killed_and_named(name):
    verdict = _verdict(name, SHOWN[name])
    assert verdict.status == "FAIL"
    (named,) = {finding.convention for finding in verdict.findings} - {""}
    assert fault(name).convention in named.split(" | ")
    assert "the answer is right with" in verdict.reason


def test_every_fault_of_convention_outside_triton_is_shown():
    expected = {one.name for one in FAULTS if one.convention and one.planted_in != "triton"}
    assert expected == set(SHOWN)


def test_conventions_that_the_catalogue_names_exist():
    assert {one.convention for one in FAULTS} - {""} <= {hypothesis.name for hypothesis in HYPOTHESES}


def test_names_of_hypotheses_are_distinct():
    assert len({one.name for one in HYPOTHESES}) == len(HYPOTHESES)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("causal-off-by-one", SQUARE),
        ("scale-off-1-percent", SQUARE),
        ("scores-in-bf16", SPARSE.format("-")),
        ("probabilities-truncated", SPARSE.format("-")),
        ("last-key-dropped", SQUARE),
        ("lse-shifted", SQUARE),
        ("one-member-wrong", TOPK.format("randn")),
        ("merge-without-max", MERGE),
    ],
)
def test_a_fault_of_another_kind_gets_no_name(name, case):
    verdict = _verdict(name, case)
    assert {finding.convention for finding in verdict.findings} == {""}


def test_an_lse_of_the_transposed_shape_is_named():
    def kernel(q, k, v, cu_q, cu_k, *, scale, causal=True):
        from attnoracle.reference import dense_mha

        out, lse = dense_mha(q, k, v, cu_q, cu_k, scale=scale, causal=causal)
        return out.to(q.dtype), lse.T.contiguous()

    turned = Implementation("dense_mha/turned", Contract(), lambda facts: None, lambda: kernel)
    verdict = check(Case.parse(SQUARE), turned)
    assert verdict.findings[0].check == "structure"
    assert verdict.findings[0].convention == "lse-transposed"


def _torch_topk(packed):
    """``torch.topk`` as it comes: a short window in the order of its scores; ``packed``: columns of the batch."""

    def kernel(scores, ks, ke, *, k):
        columns = torch.arange(scores.shape[1])
        inside = (columns >= ks[:, None]) & (columns < ke[:, None])
        chosen = torch.where(inside, scores, -torch.inf).topk(min(k, scores.shape[1])).indices
        first = torch.zeros_like(ks) if packed else ks
        return (torch.where(inside.gather(1, chosen), chosen - first[:, None], -1).int(),)

    return Implementation("topk_select/torch-topk", Contract(lse_base=None), lambda facts: None, lambda: kernel)


@pytest.mark.parametrize(
    ("packed", "name"),
    [(False, "short-window-order"), (True, "index-space-packed+short-window-order")],
    ids=["in-order-of-scores", "packed"],
)
def test_the_order_of_a_short_window_is_named_and_may_be_declared(packed, name):
    case = Case.parse("topk_select:tiny:h1:q6,2:k500,40:top64:bf16:randn:contiguous:-:s0")
    mine = _torch_topk(packed)
    assert {finding.convention for finding in check(case, mine).findings} == {name}
    declared = replace(mine, contract=replace(mine.contract, topk_short="any"))
    assert {finding.convention for finding in check(case, declared).findings} == (
        {"index-space-packed"} if packed else set()
    )


def test_an_answer_made_of_poison_names_no_reading_of_the_indices():
    """What was read cannot be told from rows that all hold the same huge number."""
    verdict = _verdict("request-local-index-as-physical", SPARSE.format("poison-huge"))
    assert verdict.status == "FAIL"
    assert not any("index" in finding.convention for finding in verdict.findings)


def test_half_an_answer_that_poison_explains_is_not_explained():
    """Counted from the lowest index, a lost tail would read poison, whose budget holds any output; not the LSE's."""
    from attnoracle.reference import sparse_mqa

    def kernel(q, kv, indices, *, scale, value_dim, lengths=None, sink=None):
        out, lse = sparse_mqa(q, kv, indices[:, :64], scale=scale, value_dim=value_dim)
        return out.to(q.dtype), lse.float()

    case = Case.parse("sparse_mqa:tiny:h4:q6:k128:top65:bf16:randn:offset:invalid:s4")
    mine = Implementation("sparse_mqa/mine", Contract(), lambda facts: None, lambda: kernel)
    verdict = check(case, mine)
    assert verdict.status == "FAIL" and {"element", "lse"} <= {finding.check for finding in verdict.findings}
    assert [finding.convention for finding in verdict.findings if finding.convention] == []


def test_without_explaining_nothing_is_named():
    faulty = fault("lse-base-2")
    verdict = check(Case.parse(SPARSE.format("-")), faulty.implementation(), explain=False)
    assert [finding.convention for finding in verdict.findings] == [""]


def test_a_sentinel_is_taken_where_it_is_declared_and_nowhere_else():
    def kernel(q, k, v, cu_q, cu_k, *, scale, causal=True, value=-5e4):
        from attnoracle.reference import dense_mha

        out, lse = dense_mha(q, k, v, cu_q, cu_k, scale=scale, causal=causal)
        return out.to(q.dtype), torch.where(lse == -torch.inf, value, lse)

    def status(value, promise):
        def run(*args, **kwargs):
            return kernel(*args, **kwargs, value=value)

        one = Implementation("dense_mha/x", Contract(empty_lse=promise), lambda facts: None, lambda: run)
        return check(Case.parse(DENSE), one).status

    assert status(-5e4, "sentinel") == "PASS"
    assert status(-5042.4, "sentinel") == "FAIL"
    assert status(-5e4, "-inf") == "FAIL"
    assert status(0.0, "zero") == "PASS"
    assert status(0.0, "sentinel") == "FAIL"
