"""Batches as text: what is read, what is refused and with which words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.routes.grammar import batch_of_lengths, batch_text, parse_batch
from attnoracle.reference.routing import Batch, Request


def lengths(batch: Batch) -> list[tuple[int, int]]:
    return [(request.query_len, request.seq_len) for request in batch.requests]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q512", [(512, 512)]),
        ("q2k", [(2048, 2048)]),
        ("8q1s2k_2q512s4k", [(1, 2048)] * 8 + [(512, 4096)] * 2),
        ("q1s1", [(1, 1)]),
        ("3q100s101_q7", [(100, 101)] * 3 + [(7, 7)]),
    ],
)
def test_read(text: str, expected: list[tuple[int, int]]) -> None:
    assert lengths(parse_batch(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "part '': expected \\[count\\]q<query>"),
        ("q5_", "part '': expected"),
        ("5", "part '5': expected"),
        ("q5s", "part 'q5s': expected"),
        ("q-5", "part 'q-5': expected"),
        ("q1m", "part 'q1m': expected"),
        ("Q5", "part 'Q5': expected"),
        ("q٣", "part 'q٣': expected"),
        ("q5 _q6", "part 'q5 ': expected"),
        ("0q5", "field count: expected 1 to 65536 requests, got 0"),
        ("99999q5", "field count: expected 1 to 65536"),
        ("65536q5_q5", "field count: expected at most 65536 requests"),
        ("q0", "field q: expected at least one new token, got 0"),
        ("q512_q5s3", "part 'q5s3', field s: expected at least q = 5 tokens"),
        ("q9999999999", "field q: expected at most 2147483647 tokens"),
    ],
    ids=repr,
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_batch(text)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9000)), min_size=1, max_size=8))
def test_what_is_written_is_read_again(pairs: list[tuple[int, int]]) -> None:
    batch = Batch(tuple(Request(query, context) for query, context in pairs))
    assert parse_batch(batch_text(batch)) == batch


def test_written_short() -> None:
    assert batch_text(parse_batch("4q1s2048_4q1s2k_q512s4096")) == "8q1s2k_q512s4k"


def test_options_instead_of_text() -> None:
    assert lengths(batch_of_lengths(["4k"], [])) == [(4096, 4096)]
    assert lengths(batch_of_lengths(["1", "2"], ["1k"])) == [(1, 1025), (2, 1026)]
    assert lengths(batch_of_lengths(["1", "2"], ["3", "0"])) == [(1, 4), (2, 2)]


@pytest.mark.parametrize(
    ("queries", "contexts", "words"),
    [
        ([], ["5"], "--context: expected --q beside it"),
        (["1", "2", "3"], ["1", "2"], "one for each of 3 --q, got 2"),
        (["0"], [], "--q: expected at least one new token"),
        (["x"], [], "--q: expected a number of tokens"),
        (["5"], ["-1"], "--context: expected a number of tokens"),
    ],
)
def test_options_refused(queries: list[str], contexts: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        batch_of_lengths(queries, contexts)
