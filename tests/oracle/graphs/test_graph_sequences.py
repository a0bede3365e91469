"""The grammar of sequences, the shipped ones, and the right layer on some of them."""

from __future__ import annotations

import pytest

from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.graphs.makers import EmulatedMaker
from attnoracle.oracle.graphs.run import run_sequence
from attnoracle.oracle.graphs.sequences import parse, themes
from attnoracle.oracle.graphs.setup import WHAT, setup


@pytest.mark.parametrize(
    "line",
    [
        "NONE: a6; force b12; eager a1 b1",
        "PIECEWISE 8,16 at 20: a12; b6; a1 b1; force c5; eager c1; -a d3 b1",
        "FULL 4 at 60: a20 b5; a1 b1; eager force -a b1",
        "FULL_AND_PIECEWISE 1,4 at 2: a3; a1",
    ],
)
def test_a_line_is_read_as_it_is_written(line: str) -> None:
    assert str(parse(line)) == line


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("PIECEWISE a6", "expected 'MODE SIZES at LENGTH: step; step'"),
        ("PIECES 8 at 9: a6", "unknown graph mode 'PIECES'; nearest: PIECEWISE"),
        ("PIECEWISE: a6", "expected captured sizes in every mode but NONE"),
        ("NONE 8 at 9: a6", "expected captured sizes in every mode but NONE"),
        ("FULL 4 at 9: a6 x; a1", "expected a6, -a, eager or force, got 'x'"),
        ("FULL 4 at 9: -b a6", "expected to preempt a request that runs, got b"),
        ("FULL 4 at 9: a6; ", "expected distinct requests"),
        ("FULL 4 at 9: a40; a40", "step 2: expected 1 to 64 tokens in all for a, got 80"),
        ("FULL 4 at 99: a4", "a length of 1 to 64"),
    ],
)
def test_a_line_that_cannot_be(line: str, told: str) -> None:
    with pytest.raises(BadInput, match=told.replace("(", r"\(")):
        parse(line)


def test_the_shipped_sequences_cover_every_pair() -> None:
    """Mode x change of route x padding: each of the six pairs of routes, there and back, in each graph mode."""
    known = {theme.name: theme for theme in themes()}
    for name in ("routes-exact", "routes-padded"):
        modes = [sequence.mode for sequence in known[name].sequences]
        assert {mode: modes.count(mode) for mode in modes} == {"PIECEWISE": 6, "FULL": 6, "FULL_AND_PIECEWISE": 6}
    assert sum(len(theme.sequences) for theme in themes()) >= 50
    assert {subject for theme in themes() for subject in theme.subjects} <= set(WHAT)


def test_exact_sizes_have_no_padding_and_padded_ones_have() -> None:
    known = {theme.name: theme for theme in themes()}
    for name, wanted in (("routes-exact", False), ("routes-padded", True)):
        sequence = known[name].sequences[0]
        seen = run_sequence(sequence, setup("fused"), EmulatedMaker())
        replayed = [step for step in seen if step.number and step.mode != "NONE"]
        assert replayed and all((step.size > step.tokens) is wanted for step in replayed)
        assert [step.violations for step in seen if step.violations] == []


@pytest.mark.parametrize("name", ["fused", "generic", "packed"])
def test_the_right_layer_is_clean(name: str) -> None:
    line = "FULL_AND_PIECEWISE 4,16 at 6: a12 b2; a1 b1; force c6; -b d9 a1"
    seen = run_sequence(parse(line), setup(name), EmulatedMaker())
    assert [step.mode for step in seen] == ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL", "PIECEWISE", "PIECEWISE"]
    assert [step.routes for step in seen[1:]] == [("masked_mha",), ("none",), ("sparse_mqa",), ("masked_mha",)]
    assert [str(violation) for step in seen for violation in step.violations] == []


def test_the_right_layer_with_quantised_queries_is_clean_under_full_graphs() -> None:
    """A scale that is copied from the host makes its capture fail; scales are filled on the device."""
    seen = run_sequence(parse("FULL 4 at 3: a20 b5; a1 b1"), setup("packed"), EmulatedMaker())
    assert [step.mode for step in seen][-1] == "FULL"
    assert [str(violation) for step in seen for violation in step.violations] == []
