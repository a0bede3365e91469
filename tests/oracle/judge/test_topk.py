"""The judge of selections: each rule violated alone is named, ties are free, NaN ranks first."""

import math

import pytest
import torch

from attnoracle.optimized.contract import Contract
from attnoracle.oracle.judge import topk

NAN, INF = math.nan, math.inf
ANY = Contract(lse_base=None)
#: Windows [0, 6), [1, 4) and an empty one; k = 4: a choice, a short window, nothing.
KS, KE = (0, 1, 5), (6, 4, 5)
SCORES = ((5.0, 1.0, 4.0, 9.0, 2.0, 3.0), (NAN, 7.0, 8.0, 6.0, INF, NAN), (NAN,) * 6)
RIGHT = ((0, 2, 3, 5), (0, 1, 2, -1), (-1,) * 4)


def _judge(rows, *, scores=SCORES, ks=KS, ke=KE, k=4, contract=ANY, band=None):
    def int32(values):
        return torch.tensor(values, dtype=torch.int32)

    return topk.judge(
        int32(rows), contract, scores=torch.tensor(scores), ks=int32(ks), ke=int32(ke), k=k,
        band=None if band is None else torch.tensor(band, dtype=torch.float64),
    )  # fmt: skip


def _named(judgement) -> set[str]:
    assert all(finding.proved and finding.check == "topk" for finding in judgement.findings)
    return {finding.message for finding in judgement.findings}


@pytest.mark.parametrize("first", [(0, 2, 3, 5), (5, 3, 2, 0), (3, 0, 2, 5)], ids=str)
def test_any_order_passes_where_there_is_a_choice(first):
    judgement = _judge((first, *RIGHT[1:]))
    assert not judgement.findings and judgement.survivors == ()
    assert judgement.measures == {"recall": 1.0, "smallest_margin": 1.0}


@pytest.mark.parametrize(
    ("row", "said", "message"),
    [
        (0, (0, 2, 3, 6), "an index is outside the window of its row"),
        (0, (0, 2, 3, -2), "an index is outside the window of its row"),
        (0, (0, 2, 3, -1), "-1 stands inside the valid prefix"),
        (0, (0, 2, 3, 3), "an index is selected twice"),
        (0, (0, 2, 3, 4), "the selected scores are not the k largest"),
        (1, (0, 2, 1, -1), "a window of at most k keys is not selected in ascending order"),
        (1, (0, 1, 2, 0), "an index stands beyond the valid prefix"),
        (2, (0, -1, -1, -1), "an index stands beyond the valid prefix"),
    ],
    ids=["beyond", "negative", "hole", "twice", "not-largest", "short-order", "padding", "empty-window"],
)
def test_each_rule_is_named(row, said, message):
    rows = list(RIGHT)
    rows[row] = said
    judgement = _judge(rows)
    assert message in _named(judgement)
    finding = next(one for one in judgement.findings if one.message == message)
    assert finding.where == f"1 of 3 elements; rows {row}"


@pytest.mark.parametrize("said", [(0, 2, 3, 4), (0, 2, 4, 5)], ids=str)
def test_a_wrong_choice_breaks_one_rule_and_no_other(said):
    assert _named(_judge((said, *RIGHT[1:]))) == {"the selected scores are not the k largest"}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ((0, 2, 1, -1), set()),
        ((0, 2, 2, -1), {"an index is selected twice", "the selected scores are not the k largest"}),
        ((0, 2, -1, 1), {"-1 stands inside the valid prefix", "an index stands beyond the valid prefix"}),
    ],
    ids=["all", "twice", "hole"],
)
def test_a_short_window_in_any_order_still_holds_all_its_keys(said, left):
    contract = Contract(lse_base=None, topk_short="any")
    assert left <= _named(_judge((RIGHT[0], said, RIGHT[2]), contract=contract))
    assert left or not _judge((RIGHT[0], said, RIGHT[2]), contract=contract).findings


def test_recall_counts_the_right_ones():
    assert _judge(((0, 3, 1, 4), *RIGHT[1:])).measures["recall"] == 0.5


@pytest.mark.parametrize("said", [(0, 1), (1, 2), (2, 3), (3, 0)], ids=str)
def test_ties_are_free(said):
    judgement = _judge((said,), scores=((2.0, 2.0, 2.0, 2.0, 1.0),), ks=(0,), ke=(5,), k=2)
    assert not judgement.findings


def test_a_key_below_the_tie_is_not_free():
    judgement = _judge(((0, 4),), scores=((2.0, 2.0, 2.0, 2.0, 1.0),), ks=(0,), ke=(5,), k=2)
    assert _named(judgement) == {"the selected scores are not the k largest"}


def test_both_zeros_tie():
    for said in ((0,), (1,), (2,)):
        assert not _judge((said,), scores=((-0.0, 0.0, -0.0),), ks=(0,), ke=(3,), k=1).findings


@pytest.mark.parametrize(("said", "right"), [((1, 3), True), ((3, 1), True), ((2, 3), False), ((0, 1), False)], ids=str)
def test_nan_ranks_above_infinity(said, right):
    judgement = _judge((said,), scores=((1.0, NAN, INF, NAN, 3e38),), ks=(0,), ke=(5,), k=2)
    assert (not judgement.findings) == right


def test_minus_infinity_inside_the_window_is_a_key():
    scores = ((-INF, -INF, 5.0, -INF),)
    assert not _judge(((2, 0),), scores=scores, ks=(0,), ke=(4,), k=2).findings
    assert "-1 stands inside the valid prefix" in _named(_judge(((2, -1),), scores=scores, ks=(0,), ke=(4,), k=2))


@pytest.mark.parametrize(
    ("order", "said", "right"),
    [
        ("ascending", (0, 2, 3, 5), True),
        ("ascending", (3, 0, 2, 5), False),
        ("descending", (3, 0, 2, 5), True),
        ("descending", (0, 2, 3, 5), False),
    ],
)
def test_a_declared_order_is_demanded(order, said, right):
    judgement = _judge((said, *RIGHT[1:]), contract=Contract(lse_base=None, topk_order=order))
    assert _named(judgement) == (set() if right else {f"selected indices are not in {order} order, as declared"})


@pytest.mark.parametrize(("said", "right"), [((0, 2), True), ((2, 1), False), ((1, 2), False)], ids=str)
def test_declared_ties_are_demanded(said, right):
    contract = Contract(lse_base=None, topk_ties="lowest-index")
    judgement = _judge((said,), scores=((2.0, 2.0, 5.0, 2.0),), ks=(0,), ke=(4,), k=2, contract=contract)
    expected = set() if right else {"of equal scores the lowest index was not selected, as declared"}
    assert _named(judgement) == expected


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ((0, 1), set()),
        ((0, 2), set()),
        ((0, 3), {"a key that must not be selected is there"}),
        ((1, 2), {"a key that must be selected is missing"}),
    ],
    ids=str,
)
def test_inside_the_score_band_anything_goes_and_outside_nothing(said, named):
    """k-th score 5, band 0.1: 4.9 may stand for it, 4.7 may not, 6 must be in."""
    scores = ((6.0, 5.0, 4.9, 4.7),)
    assert _named(_judge((said,), scores=scores, ks=(0,), ke=(4,), k=2, band=(0.1,))) == named


@pytest.mark.parametrize(
    ("scores", "survivors"),
    [
        (((5.0, 4.0, 3.0, 1.0),), ("the first k keys",)),
        (((1.0, 2.0, 3.0, 4.0),), ("the last k keys",)),
        (((1.0, 5.0, 3.0, 0.0),), ()),
        (((1.0, 1.0, 1.0, 1.0),), ()),
    ],
    ids=["falling", "rising", "mixed", "constant"],
)
def test_power(scores, survivors):
    said = torch.tensor(scores).topk(2).indices.tolist()
    assert _judge(said, scores=scores, ks=(0,), ke=(4,), k=2).survivors == survivors


@pytest.mark.parametrize(("queries", "columns"), [(0, 0), (0, 3), (3, 0)], ids=str)
def test_nothing_to_select(queries, columns):
    zeros = torch.zeros(queries, dtype=torch.int32)
    nothing = torch.full((queries, 2), -1, dtype=torch.int32)
    judged = topk.judge(nothing, ANY, scores=torch.zeros(queries, columns), ks=zeros, ke=zeros, k=2)
    assert not judged.findings and judged.survivors == ()
    if queries:
        wrong = topk.judge(nothing + 1, ANY, scores=torch.zeros(queries, columns), ks=zeros, ke=zeros, k=2)
        assert wrong.findings
