"""Case ids: readable, the same case back, and an error that names the part."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle.oracle.case import DTYPES, LAYOUTS, Case
from attnoracle.oracle.errors import BadInput

ID = "sparse_mqa:glm-5.2:h16:q64,3x1:k300,3x1:top64:bf16:needle:strided:lengths+sink:s3"

WORDS = st.from_regex(re.compile(r"[a-z0-9][a-z0-9._-]{0,12}", re.ASCII), fullmatch=True)
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 10**6))
ANY_CASE = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6).flatmap(
    lambda lengths: st.builds(
        Case,
        operator=WORDS,
        geometry=WORDS,
        heads=st.integers(1, 256),
        q_lens=st.just(tuple(q for q, _ in lengths)),
        k_lens=st.just(tuple(k for _, k in lengths)),
        topk=NUMBERS,
        dtype=st.sampled_from(DTYPES),
        kind=WORDS,
        layout=st.sampled_from(LAYOUTS),
        options=st.frozensets(WORDS, max_size=3).map(lambda names: tuple(sorted(names))),
        seed=NUMBERS,
    )
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ANY_CASE)
def test_an_id_parses_back_to_its_case(case):
    assert Case.parse(case.id) == case
    assert Case.parse(f" {case.id}\n") == case
    assert not re.search(r"\s", case.id)


def test_an_id_reads_as_documented():
    case = Case.parse(ID)
    assert case.id == ID
    assert (case.q_lens, case.k_lens, case.topk) == ((64, 1, 1, 1), (300, 1, 1, 1), 64)
    assert (case.options, case.seed, case.queries, case.keys) == (("lengths", "sink"), 3, 67, 303)


def test_options_may_come_in_any_order_and_leave_in_one():
    assert Case.parse(ID.replace("lengths+sink", "sink+lengths")).id == ID


def test_a_case_without_topk_and_options_is_shorter():
    case = Case(operator="merge_lse", geometry="tiny", heads=1, q_lens=(2,), k_lens=(2,))
    assert case.id == "merge_lse:tiny:h1:q2:k2:bf16:randn:contiguous:-:s0"


def test_another_seed_is_another_case():
    case = Case.parse(ID)
    assert case.with_seed(9).id == ID.replace(":s3", ":s9")
    assert case.with_seed(3) == case


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("h16:", "16:"), "expected h<number>, got '16'"),
        (("h16:", "h-1:"), "expected h<number>, got 'h-1'"),
        (("h16:", "h0:"), "case field 'heads': expected at least 1, got 0"),
        (("q64,3x1", "q64,3x"), "expected q<length>[,<length>…], got 'q64,3x'"),
        (("q64,3x1", "k64,3x1"), "expected q<length>[,<length>…], got 'k64,3x1'"),
        (("q64,3x1", "q64"), "as many query as key lengths and at least one request, got 1 and 4"),
        (("q64,3x1", "q64,-1"), "expected q<length>[,<length>…], got 'q64,-1'"),
        ((":k300,3x1", ":k0x300"), "as many query as key lengths and at least one request, got 4 and 0"),
        (("top64", "topp64"), "expected top<number>, got 'topp64'"),
        ((":top64", ""), None),
        (("bf16", "bf17"), "case field 'dtype': expected one of"),
        (("needle", "Needle!"), "case field 'kind': expected letters, digits"),
        (("strided", "stridden"), "case field 'layout': expected one of"),
        (("lengths+sink", "sink+sink"), "case field 'options': expected a sorted tuple of distinct names"),
        (("lengths+sink", ""), "case field 'options': expected names of letters"),
        ((":s3", ":s٣"), "expected s<number>"),
        ((":s3", ""), "case id"),
        ((":s3", ":s3:s4"), "got 12 parts"),
    ],
    ids=lambda value: f"{value[0]}->{value[1]}" if isinstance(value, tuple) else "",
)
def test_a_bad_id_names_the_part(change, words):
    text = ID.replace(*change)
    if words is None:
        assert Case.parse(text).topk == 0
        return
    with pytest.raises(BadInput, match=re.escape(words)):
        Case.parse(text)


@pytest.mark.parametrize("text", ["", "x", "a:b:c", ":" * 9, ID[:-1], ID + ":", "é" * 30])
def test_nonsense_is_bad_input_and_nothing_else(text):
    with pytest.raises(BadInput):
        Case.parse(text)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topk": -1}, "topk"), ({"seed": -1}, "seed"), ({"heads": 0}, "heads"), ({"options": ("b", "a")}, "options"),
        ({"operator": "a:b"}, "operator"), ({"geometry": ""}, "geometry"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_field_that_cannot_be_is_named(changes, field):
    good = {"operator": "merge_lse", "geometry": "tiny", "heads": 1, "q_lens": (2,), "k_lens": (2,)}
    with pytest.raises(BadInput, match=f"case field '{field}'"):
        Case(**(good | changes))


@pytest.mark.parametrize(("q", "k"), [((), ()), ((1,), ()), ((-1,), (1,)), ((1,), (-2,))], ids=str)
def test_lengths_that_cannot_be(q, k):
    with pytest.raises(BadInput, match="case lengths"):
        Case(operator="merge_lse", geometry="tiny", heads=1, q_lens=q, k_lens=k)
