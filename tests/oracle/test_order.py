"""A verdict depends on its case and its implementation, not on what ran before it, where, or beside what."""

import random

import pytest

from attnoracle.optimized import triton_runtime
from attnoracle.oracle.case import Case
from attnoracle.oracle.fleet.pool import run

_MHA = {"heads": 2, "q_lens": (9, 1, 17), "k_lens": (9, 70, 33)}
CASES = (
    Case(operator="dense_mha", geometry="tiny", kind="wide", layout="strided", seed=1, **_MHA),
    Case(operator="masked_mha", geometry="tiny", kind="randn", topk=12, layout="offset", seed=2, **_MHA),
    Case(operator="sparse_mqa", geometry="tiny", topk=24, options=("lengths", "sink"), seed=3, **_MHA),
    Case(operator="indexer_scores", geometry="tiny", kind="grid", seed=4, **_MHA),
    Case(operator="topk_select", geometry="tiny", kind="nan", topk=24, seed=5, **(_MHA | {"heads": 1})),
    Case(operator="merge_lse", geometry="tiny", kind="empties", seed=6, **(_MHA | {"k_lens": (9, 1, 17)})),
)
BACKENDS = {
    "dense_mha": ("sdpa-math", "eager"),
    "masked_mha": ("sdpa-math",),
    "sparse_mqa": ("gather",),
    "indexer_scores": ("torch",),
    "topk_select": ("torch", "sort"),
    "merge_lse": ("torch",),
}
PAIRS = [
    (case, f"{case.operator}/{backend}")
    for case in CASES
    for backend in (*BACKENDS[case.operator], *(("triton",) if triton_runtime.interpreted() else ()))
]


def _outcomes(pairs, jobs):
    """Everything about the verdicts but the time they took."""
    verdicts = run(pairs, jobs=jobs, device="cpu", on_result=lambda i, verdict: None)
    return {
        (v.case.id, v.implementation): (v.status, v.reason, v.findings, v.measures, v.worst, v.device) for v in verdicts
    }


@pytest.fixture(scope="module")
def in_order():
    return _outcomes(PAIRS, 1)


def test_they_pass_here(in_order):
    assert len(in_order) == len(PAIRS)
    assert {outcome[0] for outcome in in_order.values()} == {"PASS"}


@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_gives_the_same(in_order, seed):
    shuffled = random.Random(seed).sample(PAIRS, len(PAIRS))
    assert shuffled != PAIRS
    assert _outcomes(shuffled, 1) == in_order


def test_twice_gives_the_same(in_order):
    assert _outcomes([*PAIRS, *PAIRS], 1) == in_order


def test_two_workers_give_the_same(in_order, monkeypatch):
    if triton_runtime.interpreted():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert _outcomes(random.Random(2).sample(PAIRS, len(PAIRS)), 2) == in_order
