"""fp8 indexer scores: query scales, compressed rows, and keys on planar pages; both formulations and by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle import reference
from attnoracle.reference.second import indexer_scores as second_indexer
from attnoracle.reference.second import paged_indexer_scores as second

few = settings(derandomize=True, deadline=None, max_examples=40)
PAGE = 4


def paged_call(seed: int, m: int, lengths: list[int], *, dim: int = 8, heads: int = 2, q_scale: bool = False) -> dict:
    """A call on finite codes; unused table entries are -1 and far outside, unused slots hold NaN codes and scales."""
    rng = np.random.default_rng(seed)
    held = [-(-length // PAGE) for length in lengths]
    order = rng.permutation(sum(held) + 1)
    codes = rng.integers(0, 256, (len(order), PAGE, dim)).astype(np.uint8)
    codes[codes % 128 == 127] = 0x40
    scales = (2.0 ** rng.integers(-3, 4, (len(order), PAGE)) * rng.uniform(1, 2, (len(order), PAGE))).astype(np.float32)
    table = np.where(np.arange(max(held) + 2) % 2, -1, 10**6) * np.ones((len(lengths), 1), np.int64)
    for request, count in enumerate(held):
        table[request, :count] = order[sum(held[:request]) : sum(held[: request + 1])]
        if lengths[request] % PAGE:
            codes[table[request, count - 1], lengths[request] % PAGE :] = 0x7F
            scales[table[request, count - 1], lengths[request] % PAGE :] = np.nan
    cache = np.concatenate((codes.reshape(len(order), -1), scales.view(np.uint8).reshape(len(order), -1)), 1)
    rows = len(lengths) * m
    call = {
        "q": rng.integers(-8, 9, (len(lengths), m, heads, dim)) / 4,
        "k_cache": cache,
        "weights": rng.standard_normal((rows, heads)),
        "context_lens": np.array(lengths, np.int32),
        "block_table": table.astype(np.int32),
        "max_model_len": max(lengths) + 3,
    }
    return call | ({"q_scale": rng.uniform(0.1, 3, (rows, heads))} if q_scale else {})


@few
@given(
    m=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 3 * PAGE + 1), min_size=1, max_size=3),
    q_scale=st.booleans(),
    seed=st.integers(0, 999),
)
def test_both_formulations_of_paged_scores_agree(m, lengths, q_scale, seed, tensors, agree):
    call = paged_call(seed, m, lengths, q_scale=q_scale)
    agree(reference.paged_indexer_scores(**tensors(call)), [second.paged_indexer_scores(**call)])


@few
@given(s=st.integers(0, 5), t=st.integers(0, 9), compressed=st.booleans(), seed=st.integers(0, 999))
def test_both_formulations_agree_on_query_scales_and_compressed_rows(s, t, compressed, seed, tensors, agree):
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(0, t + 1, (s, 2)), axis=1).astype(np.int32)
    call = {
        "q": rng.standard_normal((s, 3, 5)),
        "k": rng.standard_normal((t, 5)),
        "k_scale": rng.uniform(0.1, 2, t),
        "weights": rng.standard_normal((s, 3)),
        "ks": ends[:, 0],
        "ke": ends[:, 1],
        "q_scale": rng.uniform(0.1, 2, (s, 3)),
        "max_seqlen_k": t + 2 if compressed else None,
    }
    agree(reference.indexer_scores(**tensors(call)), [second_indexer.indexer_scores(**call)])


def test_compressed_rows_are_the_windows_pushed_to_the_left(tensors):
    rng = np.random.default_rng(3)
    call = tensors(
        {
            "q": rng.standard_normal((3, 2, 4)),
            "k": rng.standard_normal((6, 4)),
            "k_scale": np.ones(6),
            "weights": rng.standard_normal((3, 2)),
            "ks": np.array([0, 2, 5], np.int32),
            "ke": np.array([3, 6, 5], np.int32),
        }
    )
    (whole,), (short,) = reference.indexer_scores(**call), reference.indexer_scores(**call, max_seqlen_k=4)
    assert torch.equal(short[0, :3], whole[0, :3]) and torch.equal(short[1], whole[1, 2:])
    assert bool((short[0, 3:] == -torch.inf).all() and (short[2] == -torch.inf).all())


def test_a_hand_made_page():
    """One page of 2 keys of 4 codes: 8 code bytes, then two scales; 38 is 1, 40 is 2, B8 is -1, 30 is 0.5."""
    page = bytes.fromhex("38400000 B8303000") + struct.pack("<2f", 0.75, 3.0)
    cache = torch.tensor(list(page), dtype=torch.uint8)[None]
    q = torch.tensor([[[[1.0, 2.0, 0.0, 0.0], [-1.0, 0.0, 4.0, 0.0]]]], dtype=torch.float64)
    # Key 0 is (1, 2, 0, 0) * 0.75, key 1 is (-1, 0.5, 0.5, 0) * 3. Head 0: 3.75, 0; head 1: relu(-0.75), 9.
    (scores,) = reference.paged_indexer_scores(
        q, cache, torch.tensor([[2.0, -1.0]]), torch.tensor([2]), torch.tensor([[0]]), max_model_len=3
    )
    assert scores.tolist() == [[7.5, -9.0, -torch.inf]]


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_each_query_of_a_request_sees_one_key_more(m, tensors):
    call = tensors(paged_call(1, m, [9, 2]))
    (scores,) = reference.paged_indexer_scores(**call)
    seen = scores.isfinite().sum(1).view(2, m)
    assert seen[0].tolist() == [9 - m + j + 1 for j in range(m)]
    assert seen[1].tolist() == [max(0, 2 - m + j + 1) for j in range(m)]


def test_where_the_pages_lie_does_not_matter(tensors):
    call = tensors(paged_call(2, 2, [9, 6]))
    (scores,) = reference.paged_indexer_scores(**call)
    order = torch.randperm(len(call["k_cache"]), generator=torch.Generator().manual_seed(1))
    inside = (call["block_table"] >= 0) & (call["block_table"] < len(order))
    moved = torch.where(inside, order.argsort()[call["block_table"].clamp(0, len(order) - 1)].int(), -1)
    (again,) = reference.paged_indexer_scores(**call | {"k_cache": call["k_cache"][order], "block_table": moved})
    assert torch.equal(scores, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_cache": torch.zeros(9, 50, dtype=torch.uint8)}, r"pages: expected uint8 \[blocks, block_size \* 12\]"),
        ({"block_table": torch.full((2, 4), 99)}, r"block_table: expected pages 0 to \d+, got \[99, 99, 99\]"),
        ({"block_table": torch.zeros(2, 2, dtype=torch.int32)}, "block_table: expected 3 pages for 9 keys, got 2"),
        ({"max_model_len": 8}, "max_seqlen_k: expected at least 9, the longest window, got 8"),
        ({"q_scale": torch.zeros(4, 2)}, r"q_scale: expected finite scales above 0, got 0.0 at \[0, 0\]"),
        ({"weights": torch.zeros(2, 2)}, r"weights: expected \[s, i\] with s=4"),
    ],
    ids=["page-size", "outside", "short-table", "no-room", "zero-scale", "weights"],
)
def test_what_cannot_be_is_refused(change, message, tensors):
    with pytest.raises(ValueError, match=message):
        reference.paged_indexer_scores(**tensors(paged_call(2, 2, [9, 6])) | change)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_in_use_that_is_none_is_refused(scale, tensors):
    call = paged_call(2, 1, [9])
    at = call["block_table"][0, 1]
    call["k_cache"][at, PAGE * 8 : PAGE * 8 + 4] = np.array([scale], np.float32).view(np.uint8)
    with pytest.raises(ValueError, match="k_scale: expected finite scales above 0"):
        reference.paged_indexer_scores(**tensors(call))
