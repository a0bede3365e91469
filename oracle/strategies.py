"""Hypothesis strategies that draw cases, never tensors: what is drawn can be printed, shrunk and sent to a colleague.

::

    @given(cases("sparse_mqa"))
    def test_my_kernel(case):
        assert check(case, MINE).status in ("PASS", "WEAK", "UNSUPPORTED")

Importing this module needs Hypothesis (``pip install attnoracle[test]``) and nothing else of ours imports it. Two
profiles are registered: ``steady`` draws the same examples every time and knows no deadline, ``nightly`` draws others
every night; the environment variable HYPOTHESIS_PROFILE chooses, and ``steady`` is what holds without it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from .case import LAYOUTS, Case
from .errors import BadInput
from .inputs import KINDS
from .inputs.ranges import EDGES, HEADS, SELECTING, TOPKS, choices, compatible, settled
from .inputs.ranges import dtypes as dtypes_of

PROFILES = {
    "steady": settings(derandomize=True, deadline=None, database=None, print_blob=True),
    "nightly": settings(
        derandomize=False, deadline=None, max_examples=1000, print_blob=True, suppress_health_check=list(HealthCheck)
    ),
}


def use_profile() -> str:
    """Register the profiles and load the one that HYPOTHESIS_PROFILE names, or ``steady``; returns its name."""
    name = os.environ.get("HYPOTHESIS_PROFILE", "steady")
    if name not in PROFILES:
        raise BadInput(f"HYPOTHESIS_PROFILE: expected one of {', '.join(PROFILES)}, got {name!r}")
    for known, profile in PROFILES.items():
        settings.register_profile(known, profile)
    settings.load_profile(name)
    return name


@cache  # building a strategy costs as much as a draw from it
def lengths(largest: int = 129, requests: int = 3) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """(queries, keys) of 1 to ``requests`` requests, up to ``largest`` each; 0 and fewer keys than queries too."""
    near = st.sampled_from([edge for edge in EDGES if edge <= largest])
    one = st.one_of(near, st.integers(0, largest))
    few = st.one_of(st.integers(0, min(5, largest)), near)
    return st.lists(st.tuples(st.one_of(few, one), one), min_size=1, max_size=requests).map(tuple)


@cache
def options(operator: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Options that go together: at most one pattern, at most one poison, any of the others."""
    picks = (
        st.lists(st.sampled_from(group.names), max_size=group.most, unique=True) if group.names else st.just([])
        for group in choices(operator)
    )
    return st.tuples(*picks).map(lambda parts: compatible(name for part in parts for name in part))


@st.composite
def cases(
    draw: st.DrawFn,
    operator: str,
    *,
    geometry: str = "tiny",
    dtypes: Sequence[str] | None = None,
    largest: int = 129,
) -> Case:
    """A case of ``operator`` that inputs can be made for: every kind, option and layout, lengths near tile edges.

    ``largest`` bounds the queries and keys of a request. Raises BadInput for an unknown operator.
    """
    if operator not in KINDS:
        raise BadInput(f"operator {operator!r}: expected one of {', '.join(KINDS)}")
    pairs = draw(lengths(largest))
    if operator == "merge_lse":
        pairs = tuple((queries, queries) for queries, _ in pairs)
    if operator == "paged_indexer_scores":
        queries = draw(st.integers(1, 4))
        pairs = tuple((queries, keys) for _, keys in pairs)
    chosen = draw(options(operator))
    dtype = "bf16" if operator == "topk_select" else draw(st.sampled_from(dtypes or dtypes_of(operator)))
    chosen, dtype = settled(operator, chosen, dtype)
    needs_topk = operator in SELECTING
    return Case(
        operator=operator,
        geometry=geometry,
        heads=1 if operator == "topk_select" else draw(st.sampled_from(HEADS)),
        q_lens=tuple(queries for queries, _ in pairs),
        k_lens=tuple(keys for _, keys in pairs),
        topk=draw(st.sampled_from(TOPKS)) if needs_topk else 0,
        dtype=dtype,
        kind=draw(st.sampled_from(tuple(KINDS[operator]))),
        layout=draw(st.sampled_from(LAYOUTS)),
        options=chosen,
        seed=draw(st.integers(0, 999)),
    )
