"""What no kernel may let matter is poisoned; what counts never is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attnoracle.oracle.inputs import Inputs
from attnoracle.oracle.inputs.patterns import INDEX_PATTERNS

Build = Callable[..., Inputs]
OPTIONS = [(pattern,) for pattern in INDEX_PATTERNS] + [("lengths",), ("empty-rows",), ("highrows",)]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options[0])
def test_cache_rows_are_nan_exactly_where_unreferenced(build: Build, options: tuple[str, ...]) -> None:
    inputs = build("sparse_mqa", options=tuple(sorted((*options, "poison-nan"))))
    kv, indices = inputs.tensors["kv"], inputs.tensors["indices"].long()
    counts = (indices >= 0) & (indices < len(kv))
    if "lengths" in inputs.tensors:
        counts &= torch.arange(indices.shape[1]) < inputs.tensors["lengths"][:, None]
    used = torch.zeros(len(kv), dtype=torch.bool)
    used[indices[counts]] = True
    assert bool(used.any()) and not bool(used[0])
    assert torch.equal(kv.isnan().any(1), ~used) and torch.equal(kv.isnan().all(1), ~used)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_huge_and_stale_poison(build: Build, dtype: str) -> None:
    huge = build("sparse_mqa", options=("poison-huge",), dtype=dtype).tensors["kv"][0].float().abs()
    stale = build("sparse_mqa", options=("poison-stale",), dtype=dtype).tensors["kv"][0].float().abs()
    assert float(huge.min()) > 5e4 and bool(huge.isfinite().all())
    assert 0.1 < float(stale.mean()) < 3


def test_the_seed_chooses_among_all_poisons(build: Build) -> None:
    kinds = set()
    for seed in range(16):
        row = build("sparse_mqa", seed=seed, q_lens=(1,), k_lens=(4,)).tensors["kv"][0].float()
        kinds.add("nan" if row.isnan().any() else "huge" if row.abs().max() > 1e4 else "stale")
    assert kinds == {"nan", "huge", "stale"}


@pytest.mark.parametrize("operator", ["dense_mha", "masked_mha"])
def test_keys_no_query_may_see_are_finite_poison_unless_nan_is_asked_for(build: Build, operator: str) -> None:
    for seed in range(8):
        tensors = build(operator, seed=seed).tensors
        assert bool(tensors["k"].isfinite().all()) and bool(tensors["v"].isfinite().all())
    spoilt = build(operator, options=("poison-nan",)).tensors
    unseen = spoilt["k"].isnan().all(-1).all(-1)
    assert torch.equal(spoilt["v"].isnan().any(-1).any(-1), unseen)
    assert bool(unseen[140:147].all())
    assert not bool(unseen[147:].any()) and not bool(spoilt["q"].isnan().any())
    assert bool(unseen[:140].any()) == (operator == "masked_mha")


def test_masked_keys_that_some_query_sees_are_kept(build: Build) -> None:
    inputs = build("masked_mha", options=("poison-nan", "prefix"))
    unseen = inputs.tensors["k"].isnan().any(-1).any(-1)
    assert unseen[:140].tolist() == [False] * 24 + [True] * 116


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_indexer_keys_outside_every_window(build: Build, dtype: str) -> None:
    tensors = build("indexer_scores", options=("poison-nan",), dtype=dtype).tensors
    spoilt = tensors["k"].float().isnan().any(1)
    assert spoilt.tolist() == [False] * 140 + [True] * 7 + [False] * 3
    assert torch.equal(tensors["k_scale"].isnan(), spoilt)


def test_scores_outside_the_window_are_a_mixture_of_garbage(build: Build) -> None:
    tensors = build("topk_select").tensors
    scores, column = tensors["scores"], torch.arange(150)
    inside = (column >= tensors["ks"][:, None]) & (column < tensors["ke"][:, None])
    assert bool(scores[inside].isfinite().all())
    outside = scores[~inside]
    assert bool(outside.isnan().any()) and bool((outside == 3e38).any()) and bool((outside == float("inf")).any())
    assert bool((outside.abs() < 10).any())


@pytest.mark.parametrize("name", ["nan", "huge", "stale"])
def test_forced_garbage(build: Build, name: str) -> None:
    row = build("topk_select", options=(f"poison-{name}",)).tensors["scores"][3]
    kinds = {"nan": row.isnan(), "huge": row == 3e38, "stale": row.abs() < 10}
    assert bool(kinds[name].all())


def test_an_empty_side_of_a_merge_holds_nan(build: Build) -> None:
    tensors = build("merge_lse", kind="empties", q_lens=(40,), k_lens=(40,)).tensors
    empty = {side: tensors[f"lse_{side}"] == float("-inf") for side in "ab"}
    for side, where in empty.items():
        assert torch.equal(tensors[f"out_{side}"].isnan().all(-1), where)
        assert torch.equal(tensors[f"out_{side}"].isnan().any(-1), where)
    both = empty["a"] & empty["b"]
    assert bool(both.any()) and bool((empty["a"] & ~both).any()) and bool((empty["b"] & ~both).any())
    assert not bool((empty["a"] | empty["b"]).all())
