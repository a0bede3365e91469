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
from collections.abc import Iterable, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from .case import LAYOUTS, Case
from .errors import BadInput
from .inputs import KINDS, OPTIONS
from .inputs.options import EXCLUSIVE
from .inputs.patterns import INDEX_PATTERNS, MASK_PATTERNS

#: Lengths around the tiles of 16, 32, 64 and 128 that kernels work in, and the smallest ones.
EDGES = (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129)
#: Top-k around the same tiles.
TOPKS = (1, 2, 15, 16, 17, 33, 63, 64, 65, 100)
HEADS = (1, 2, 3, 5, 8, 16)
_DTYPES: dict[str, tuple[str, ...]] = {
    "indexer_scores": ("bf16", "fp16", "fp32", "e4m3"),
    "paged_indexer_scores": ("e4m3",),
}
_PATTERNS = {
    "masked_mha": tuple(MASK_PATTERNS),
    **dict.fromkeys(("sparse_mqa", "convert_indices", "build_mask"), tuple(INDEX_PATTERNS)),
}
_SELECTING = ("sparse_mqa", "topk_select", "masked_mha", "convert_indices", "build_mask")
_QUANTISED = ("ds-mla", "pages", "pow2-scales", "wide-scales", "zero-tiles")
#: Needs over 4 GiB of device memory.
_TOO_LARGE = "hugerows"

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


def lengths(largest: int = 129, requests: int = 3) -> st.SearchStrategy[tuple[tuple[int, int], ...]]:
    """(queries, keys) of 1 to ``requests`` requests, up to ``largest`` each; 0 and fewer keys than queries too."""
    near = st.sampled_from([edge for edge in EDGES if edge <= largest])
    one = st.one_of(near, st.integers(0, largest))
    few = st.one_of(st.integers(0, min(5, largest)), near)
    return st.lists(st.tuples(st.one_of(few, one), one), min_size=1, max_size=requests).map(tuple)


def options(operator: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Options that go together: at most one pattern, at most one poison, any of the others."""
    known = OPTIONS[operator]
    patterns = [name for name in _PATTERNS.get(operator, ()) if name in known]
    poisons = [name for name in known if name.startswith("poison-")]
    # NaN where only a weight of 0 reaches it is more than these kernels promise; see ``inputs/dense.py``.
    if operator in ("dense_mha", "masked_mha"):
        poisons.remove("poison-nan")
    free = [name for name in known if name not in (*patterns, *poisons, "poison-nan", _TOO_LARGE)]
    picks = (
        st.lists(st.sampled_from(group), max_size=most, unique=True) if group else st.just([])
        for group, most in ((patterns, 1), (poisons, 1), (free, 2))
    )
    return st.tuples(*picks).map(lambda parts: _compatible(name for part in parts for name in part))


def _compatible(names: Iterable[str]) -> tuple[str, ...]:
    """The names, sorted, without those that an earlier one excludes."""
    kept: list[str] = []
    for name in names:
        rivals = {rival for group in EXCLUSIVE if name in group for rival in group}
        if not rivals & set(kept):
            kept.append(name)
    return tuple(sorted(kept))


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
    dtype = "bf16" if operator == "topk_select" else draw(st.sampled_from(dtypes or _dtypes(operator)))
    if operator == "sparse_mqa" and set(chosen) & set(_QUANTISED):
        # About the bytes of a quantised cache: the format that has them all.
        chosen, dtype = tuple(sorted({*chosen, "ds-mla"})), "bf16"
    needs_topk = operator in _SELECTING
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


def _dtypes(operator: str) -> tuple[str, ...]:
    return _DTYPES.get(operator, ("bf16", "fp16", "fp32"))
