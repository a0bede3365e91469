"""Chunked context: every row once, aligned splits, one continuation a chunk."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle.reference.routing import ContextChunk, dcp_rows, longest_chunk, plan_chunks


def test_small_plan() -> None:
    chunks = plan_chunks([100, 0, 300, 40], 256, 64)
    assert chunks == (
        ContextChunk(0, (0,), (100,)),
        ContextChunk(2, (0,), (256,)),
        ContextChunk(2, (256, 0), (44, 40)),
    )
    assert [chunk.continues for chunk in chunks] == [False, False, True]
    assert longest_chunk(chunks) == 256


def test_no_context_no_chunk() -> None:
    assert plan_chunks([0, 0], 64, 64) == ()
    assert longest_chunk(()) == 0


@pytest.mark.parametrize(
    ("contexts", "rows", "block", "word"),
    [([1], 63, 64, "room for one block"), ([-1], 64, 64, "no negative context"), ([1], 64, 0, "positive block size")],
    ids=["no-room", "negative", "no-block"],
)
def test_plans_that_cannot_be(contexts: list[int], rows: int, block: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        plan_chunks(contexts, rows, block)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    contexts=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    block=st.sampled_from([1, 16, 64]),
    blocks=st.integers(1, 12),
    dcp=st.sampled_from([1, 2, 3]),
)
def test_every_context_row_is_gathered_once(contexts: list[int], block: int, blocks: int, dcp: int) -> None:
    cost = partial(dcp_rows, dcp=dcp, interleave=1)
    rows = blocks * block * dcp
    gathered: list[list[int]] = [[] for _ in contexts]
    for chunk in plan_chunks(contexts, rows, block, cost=cost):
        assert all(length > 0 for length in chunk.lengths)
        assert not any(chunk.starts[1:]), "only the first request of a chunk may continue"
        spent = 0
        for request, start, length in zip(chunk.requests, chunk.starts, chunk.lengths, strict=True):
            assert start % block == 0
            gathered[request] += range(start, start + length)
            spent += cost(start + length) - cost(start)
        assert spent <= rows
    assert gathered == [list(range(context)) for context in contexts]
