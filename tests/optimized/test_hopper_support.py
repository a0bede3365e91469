"""Hopper's kernels without a GPU: what they say they take, what they refuse, and the part that Triton interprets."""

from __future__ import annotations

import pytest

from attnoracle.optimized import triton_runtime

triton_runtime.prepare()

import torch  # noqa: E402

from attnoracle.optimized.hopper_kernels import IMPLEMENTATIONS  # noqa: E402
from attnoracle.optimized.hopper_kernels.indexer_scores import queries_of  # noqa: E402
from attnoracle.optimized.hopper_kernels.shared_keys import shared_keys  # noqa: E402
from attnoracle.optimized.hopper_kernels.sparse_mqa import group_of, sparse_mqa, sparse_mqa_shared  # noqa: E402
from attnoracle.optimized.hopper_kernels.topk_select import shape_of, topk_select  # noqa: E402
from attnoracle.oracle.case import Case  # noqa: E402
from attnoracle.oracle.config import load  # noqa: E402
from attnoracle.oracle.facts import facts  # noqa: E402
from attnoracle.oracle.guests.known import find  # noqa: E402

HOPPER = {"device": "cuda", "capability": (9, 0), "interpreted": False}


def reason(name, case_id, **changes):
    case = Case.parse(case_id)
    return find(name).supports(facts(case, load(case.geometry), "cpu") | HOPPER | changes)


@pytest.mark.parametrize("one", IMPLEMENTATIONS, ids=lambda one: one.name)
def test_not_without_a_hopper_gpu(one, monkeypatch):
    monkeypatch.setattr(triton_runtime, "availability", lambda: None)
    case_id = {
        "dense_mha": "dense_mha:glm-5:h2:q9:k20:bf16:randn:contiguous:-:s0",
        "masked_mha": "masked_mha:glm-5:h2:q9:k20:top8:bf16:randn:contiguous:-:s0",
        "sparse_mqa": "sparse_mqa:glm-5:h8:q9:k20:top8:bf16:randn:contiguous:-:s0",
        "indexer_scores": "indexer_scores:glm-5:h32:q9:k20:e4m3:randn:contiguous:-:s0",
        "topk_select": "topk_select:glm-5:h1:q9:k20:top8:bf16:randn:contiguous:-:s0",
    }[one.operator]
    assert reason(one.name, case_id) is None
    assert "interpreter" in reason(one.name, case_id, interpreted=True, device="cpu", capability=None)
    assert "(10, 0)" in reason(one.name, case_id, capability=(10, 0))


@pytest.mark.parametrize(
    ("name", "case_id", "words"),
    [
        ("dense_mha/hopper", "dense_mha:glm-5:h2:q9:k20:fp32:randn:contiguous:-:s0", "got fp32"),
        ("sparse_mqa/hopper", "sparse_mqa:glm-5.3-flash:h8:q9:k20:top8:bf16:randn:contiguous:-:s0", "got 512+0"),
        ("sparse_mqa/hopper", "sparse_mqa:glm-5:h8:q9:k20:top8:fp16:randn:contiguous:-:s0", "got fp16"),
        ("sparse_mqa/hopper-shared", "sparse_mqa:glm-5:h64:q9:k20:top8:bf16:randn:contiguous:-:s0", "got 64"),
        (
            "sparse_mqa/hopper-shared",
            "sparse_mqa:glm-5:h8:q9:k20:top8:bf16:randn:contiguous:duplicates:s0",
            "counts once",
        ),
        ("indexer_scores/hopper", "indexer_scores:glm-5:h8:q9:k20:e4m3:randn:contiguous:-:s0", "got 8 of 128"),
        ("topk_select/hopper", "topk_select:glm-5:h1:q9:k32767:top8:bf16:randn:contiguous:-:s0", "got 32767"),
    ],
)
def test_what_a_kernel_does_not_take(name, case_id, words, monkeypatch):
    monkeypatch.setattr(triton_runtime, "availability", lambda: None)
    assert words in reason(name, case_id)


def test_inputs_that_do_not_fit_are_refused():
    q, kv = torch.zeros(3, 8, 576, dtype=torch.bfloat16), torch.zeros(9, 576, dtype=torch.bfloat16)
    indices = torch.zeros(3, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="value_dim: expected 512, got 256"):
        sparse_mqa(q, kv, indices, scale=1.0, value_dim=256)
    with pytest.raises(ValueError, match="q: expected shape"):
        sparse_mqa(q[..., :512], kv, indices, scale=1.0, value_dim=512)
    with pytest.raises(ValueError, match="kv: expected rows that start at multiples of 16 bytes"):
        sparse_mqa(q, torch.zeros(9, 580, dtype=torch.bfloat16)[:, :576], indices, scale=1.0, value_dim=512)
    with pytest.raises(ValueError, match="expected at most 32, so that two queries share a tile, got 64"):
        sparse_mqa_shared(torch.zeros(3, 64, 576, dtype=torch.bfloat16), kv, indices, scale=1.0, value_dim=512)
    rows = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="at most 32768 columns, got 32769"):
        topk_select(torch.zeros(2, 32769), rows, rows, k=3)


def test_queries_of_a_program_go_into_whole_turns():
    found = [queries_of(s, t) for s, t in ((4096, 32768), (8192, 8192), (2048, 8192), (1, 1))]
    assert found[0] == found[1] != found[2] == found[3]
    assert all(queries % chain == 0 and chain % 2 == 0 for queries, chain in found)


def test_shapes_hold_their_rows():
    assert [group_of(heads) for heads in (1, 7, 8, 9, 16, 32)] == [8, 8, 8, 4, 4, 2]
    for columns in (1, 2048, 2049, 8192, 8193, 32768):
        deep, wide, warps, _ = shape_of(columns)
        assert deep * wide >= columns and wide == 128 * warps and deep <= 32


@pytest.mark.parametrize("lengths", [None, [5, 0, 7, 3, 6]])
@pytest.mark.parametrize("group", [2, 3, 4, 8])
def test_shared_keys_are_the_union_with_a_bit_for_each_query(lengths, group):
    n = 41
    indices = torch.tensor(
        [
            [3, 40, 3, -1, 41, 7, 0],
            [40, 3, 2, 1, 0, -5, 9],
            [6, 6, 6, 6, 6, 6, 39],
            [1] * 7,
            [2**31 - 1, 8, 4, 4, 5, 8, 1],
        ],
        dtype=torch.int32,
    )
    counts = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    found = shared_keys(indices, n, counts, group)
    for place in range(-(-5 // group)):
        selected: dict[int, int] = {}
        for member, query in enumerate(range(place * group, min(5, place * group + group))):
            row = indices[query, : None if lengths is None else lengths[query]].tolist()
            for key in row:
                if 0 <= key < n:
                    selected[key] = selected.get(key, 0) | 1 << member
        count = int(found.counts[place])
        got = dict(zip(found.keys[place, :count].tolist(), found.bits[place, :count].tolist(), strict=True))
        assert got == selected and found.keys[place, :count].tolist() == sorted(selected)


def test_quantised_caches_are_refused():
    q, kv = torch.zeros(3, 8, 576, dtype=torch.bfloat16), torch.zeros(9, 576, dtype=torch.bfloat16)
    indices = torch.zeros(3, 4, dtype=torch.int32)
    for call in (sparse_mqa, sparse_mqa_shared):
        with pytest.raises(ValueError, match=r"expected a cache of the model.s dtype and no scales, got .fp8_ds_mla"):
            call(q, kv, indices, scale=1.0, value_dim=512, cache_format="fp8_ds_mla")
