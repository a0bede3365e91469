"""From which length on a wrong reading shows in the layer's output: what ``choices`` says, held against the layer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnoracle.oracle.bringup.choices import choices
from attnoracle.oracle.bringup.misreadings import MISREADINGS
from attnoracle.oracle.bringup.subject import open_subject
from attnoracle.oracle.bringup.suite import SMALL
from attnoracle.reference.stages import random_weights, run

#: Between the rounding of float64 and any difference that a reading makes here.
_SAME = 1e-9
_READINGS = {one.name: one for one in MISREADINGS}
_NAMES = sorted(
    reading
    for one in choices(open_subject(str(Path(__file__).resolve().parents[3] / "examples" / "bringup" / "config.json")))
    for reading in one.readings
)


@pytest.fixture(scope="module")
def layer(suite):
    return suite.model, random_weights(suite.model, seed=3)


def _differs(layer, reading, tokens, size=1.0):
    model, weights = layer
    hidden = torch.randn(tokens, model.hidden, generator=torch.Generator().manual_seed(11), dtype=torch.float64) * size
    functions = dict(_READINGS[reading].stages)
    if reading == "hadamard-query-only":  # its own side, as the name says: on both it cancels
        del functions["index_key"]
    right = run(model, weights, hidden, tokens)["out"]
    wrong = run(model, weights, hidden, tokens, functions=functions)["out"]
    return bool((right - wrong).abs().max() > _SAME * size)


@pytest.mark.parametrize("reading", _NAMES)
def test_a_wrong_reading_shows_from_the_stated_length_on(folder, layer, reading):
    stated = next(one for one in choices(open_subject(str(folder / "tiny.json"))) if reading in one.readings)
    if stated.layer_length is None:
        assert not _differs(layer, reading, 4 * layer[0].topk)
        return
    if stated.layer_length > 1:
        assert not _differs(layer, reading, stated.layer_length - 1)
    # One more token changes a selection only if the scores happen to change order, so a few lengths are tried.
    # Where an epsilon is all that differs, the hidden states have to be small.
    lengths = [stated.layer_length + more for more in range(24)]
    assert any(_differs(layer, reading, each, size) for size in (1.0, SMALL) for each in lengths)


def test_hadamard_on_both_sides_changes_nothing(layer):
    model, weights = layer
    hidden = torch.randn(24, model.hidden, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain, turned = (run(each, weights, hidden, 24) for each in (model, replace(model, hadamard=True)))
    assert torch.equal(plain["indices"], turned["indices"])
    assert not torch.allclose(plain["index_q"], turned["index_q"])


def test_a_shared_layer_attends_to_the_selection_it_is_given(layer):
    model, weights = layer
    hidden = torch.randn(24, model.hidden, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    full = run(model, weights, hidden, 24)
    shared = run(model, weights, hidden, 24, indices=full["indices"])
    assert torch.equal(full["out"], shared["out"]) and "scores" not in shared


@pytest.mark.parametrize("queries", [1, 7, 16])
def test_a_chunk_gives_the_last_rows_of_the_whole(layer, queries):
    model, weights = layer
    hidden = torch.randn(24, model.hidden, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    whole, chunk = (run(model, weights, hidden, each)["out"] for each in (24, queries))
    torch.testing.assert_close(whole[-queries:], chunk, rtol=0, atol=_SAME)
