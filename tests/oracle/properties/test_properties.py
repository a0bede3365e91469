"""Every property is stated, holds for what is shipped, and kills a fault of the catalogue."""

import re

import pytest

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.guests import known
from attnoracle.oracle.operators import OPERATORS
from attnoracle.oracle.properties.cases import cases_for, property_cases
from attnoracle.oracle.properties.run import hold
from attnoracle.oracle.properties.table import PROPERTIES, property_named

#: Property to a fault that it kills on the first small case, or on the one named.
KILLS = {
    "key-order": ("accumulator-not-rescaled", 0),
    "slot-order": ("sum-not-rescaled", 0),
    "row-relocation": ("invalid-maps-to-row-0", 1),
    "batch-order": ("one-row-stale", 0),
    "batch-invariance": ("large-batch-loses-key", 1),
    "repeat": ("second-call-differs", 0),
    "split-and-merge": ("exp2-without-log2e", 0),
    "empty-part": ("last-tile-loads-unguarded", 0),
    "masked-keys": ("first-key-dropped", 0),
    "invalid-slots": ("only-minus-one-is-invalid", 0),
    "value-linearity": ("output-through-fp8", 0),
    "value-scale": ("output-through-fp8", 0),
    "constant-values": ("small-rescale-skipped", 0),
    "value-offset": ("masked-keys-score-zero", 0),
    "one-hot-values": ("mask-bits-reversed-in-word", 0),
    "convexity": ("heads-rolled", 0),
    "score-shift": ("scale-off-0.1-percent", 0),
    "scale-exchange": ("scale-missing", 0),
    "rotation": ("key-through-fp8", 0),
    "repeated-keys": ("sum-in-bf16", 0),
    "duplicate-index": ("duplicates-collapsed", 0),
    "identical-keys": ("scale-off-1-percent", 0),
    "dominant-key": ("scale-rounded-to-bf16", 0),
    "growing-prefix": ("causal-off-by-one", 0),
    "causality": ("causal-ignored", 0),
    "window": ("mask-replaces-causal", 0),
    "full-mask": ("mask-top-bit-lost", 0),
    "head-order": ("two-heads-swapped", 0),
    "all-selected": ("exp2-without-log2e", 0),
    "monotone-sets": ("log2e-in-bf16", 0),
    "rope-is-no-value": ("value-slice-shifted", 0),
    "absorbed": ("sum-not-rescaled", 0),
    "sink": ("sink-ignored", 0),
    "empty-row": ("empty-row-nan", 0),
    "selection-length": ("lengths-ignored", 0),
    "head-sum": ("page-scales-of-half-page", 0),
    "homogeneity": ("page-scales-of-half-page", 0),
    "key-scale": ("page-scales-of-half-page", 0),
    "sign": ("page-scales-of-half-page", 0),
    "locality": ("outside-window-zero", 0),
    "key-columns": ("key-scale-per-block", 0),
    "monotone-scores": ("selection-cached-by-shape", 0),
    "window-shift": ("indexer-rope-packed-position", 0),
    "lost-mass": ("negative-index-wraps", 0),
    "chunked": ("causal-top-left", 0),
    "stable-codes": ("first-token-unwritten", 0),
}
#: Enough to see that each family of relations holds; the command runs all of them.
FEW = ("batch-invariance", "split-and-merge", "value-linearity", "score-shift", "head-order", "empty-row")
HELD = ("dense_mha/eager", "sparse_mqa/gather", "indexer_scores/torch", "paged_indexer_scores/torch")


def test_the_table_is_complete_and_says_what_it_means():
    assert [one.number for one in PROPERTIES] == list(range(1, len(PROPERTIES) + 1))
    assert len({one.name for one in PROPERTIES}) == len(PROPERTIES)
    operators = {one.name for one in OPERATORS}
    for one in PROPERTIES:
        assert set(one.operators) <= operators and len(one.statement) > 40, one.name
        assert re.search(r"[.:]", one.statement)
    assert operators == {name for one in PROPERTIES for name in one.operators}, "each operator has a property"


def test_every_property_among_the_46_has_a_fault_that_it_kills():
    assert list(KILLS) == [one.name for one in PROPERTIES[:46]]


@pytest.mark.parametrize("name", KILLS)
def test_a_property_kills(name, outcome):
    planted, case = KILLS[name]
    found = outcome(name, f"fault:{planted}", case)
    assert (found.status, found.name) == ("failed", name), found.reason
    assert found.reason and found.ratio > 1.0


@pytest.mark.parametrize("name", HELD)
def test_shipped_kernels_keep_them(name):
    one = known.find(name)
    chosen = [x for x in PROPERTIES if x.name in FEW or one.operator.endswith("indexer_scores")]
    found = list(hold(property_cases(one.operator)[0], one, "cpu", chosen))
    assert [x.reason for x in found if x.status == "failed"] == []
    assert sum(x.status == "held" for x in found) >= 5
    assert all(x.ratio <= 1.0 for x in found)


@pytest.mark.parametrize(
    "name", [x.name for x in IMPLEMENTATIONS if x.name.endswith("/torch") and "indexer" not in x.name]
)
def test_kernels_of_other_operators_keep_all(name):
    one = known.find(name)
    for case in cases_for(one, "cpu"):
        assert [x.reason for x in hold(case, one, "cpu") if x.status == "failed"] == []


def test_what_does_not_apply_says_why(outcome):
    found = outcome("split-and-merge", "dense_mha/sdpa-math")
    assert (found.status, found.reason, found.claims) == ("not applicable", "it returns no LSE", 0)
    found = outcome("value-scale", "sparse_mqa/gather", 2)
    assert found.status == "not applicable" and "quantised" in found.reason
    one = known.find("topk_select/torch")
    apart = next(hold(property_cases("topk_select")[0], one, "cpu", [property_named("sink")]))
    assert (apart.status, apart.reason) == ("not applicable", "says nothing about topk_select")


def test_lengths_that_a_kernel_does_not_take_are_not_tried_on_it():
    """torch's flash kernel ends the process on a request without keys."""
    one = known.find("dense_mha/sdpa-flash")
    (case,) = cases_for(one, "cpu")
    found = next(hold(case, one, "cpu", [property_named("empty-row")]))
    assert found.status == "not applicable" and "without keys" in found.reason


def test_unknown_properties_get_the_nearest_names():
    assert property_named("7").name == "split-and-merge"
    with pytest.raises(BadInput, match="split-and-merge"):
        property_named("split-merge")
