"""The first stage of a layer that is wrong: in its operators, between them, and in the route."""

import pytest

from attnoracle.oracle.diagnose.layer_stages import localise
from attnoracle.oracle.faults import fault
from attnoracle.oracle.layer import variants
from attnoracle.oracle.layer.rig import REFERENCE_OPERATORS, RigSizes
from attnoracle.oracle.layer.small import DEPLOYMENT, small_rules
from attnoracle.reference.layer import SparseMLALayer

STEPS = [[(0, 5)], [(0, 1), (1, 12)], [(1, 1), (0, 9)], [(0, 1), (1, 1)]]


def _localised(**changes):
    return localise(small_rules(), DEPLOYMENT, RigSizes(), STEPS, **changes)


def test_a_right_layer_has_no_breach():
    assert _localised().breaches == ()


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("scale-off-1-percent", "scores"),
        ("relu-missing", "logits"),
        ("smallest-selected", "top-k"),
        ("merge-by-mean", "merge"),
        ("lse-base-2", "lse"),
        ("value-tail-zero", "P.V"),
    ],
)
def test_an_operator_that_breaks_its_budget_is_the_stage(name, stage):
    planted = fault(name)
    found = _localised(operators={**REFERENCE_OPERATORS, planted.operator: planted.plant()})
    assert found.stage == stage, found
    # Exchanged alone: without it the layer is right, and with it alone the reference is wrong.
    assert found.exchange.confirmed and found.exchange.cured < 1e-9 < found.exchange.infected


@pytest.mark.parametrize(
    ("layer", "stage"),
    [
        (variants.RotatesTwice, "rope"),
        (variants.NeverRotates, "rope"),
        (variants.UnabsorbedIntoMqa, "projection"),
        (variants.LosesOne, "index conversion"),
        (variants.SkipsBeforeCaching, "indexer q/k"),
        (variants.NeverMha, "route"),
    ],
)
def test_what_stands_between_two_operators_is_told_by_what_it_hands_on(layer, stage):
    assert _localised(make=layer).stage == stage


def test_a_stage_behind_another_wrong_one_is_not_hidden():
    planted = fault("relu-missing")
    found = _localised(
        operators={**REFERENCE_OPERATORS, "indexer_scores": planted.plant()}, make=variants.UnabsorbedIntoMqa
    )
    assert {"logits", "projection"} <= {breach.stage for breach in found.breaches}


def test_a_layer_whose_output_is_changed_behind_the_last_operator():
    class Scaled(SparseMLALayer):
        def forward(self, inputs, metadata):
            out, trace = super().forward(inputs, metadata)
            return out * 1.5, trace

    assert _localised(make=Scaled).stage == "output"
