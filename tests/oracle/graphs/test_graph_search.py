"""Random sequences: none breaks the right layer, and a fault is shrunk to a sequence that is a fixture."""

from __future__ import annotations

from attnoracle.oracle.graphs.faults import graph_fault
from attnoracle.oracle.graphs.search import search
from attnoracle.oracle.graphs.sequences import parse
from attnoracle.oracle.graphs.setup import setup


def test_random_sequences_leave_the_right_layer_clean() -> None:
    assert search(setup("fused"), 3, steps=3) is None


def test_a_fault_is_found_and_shrunk() -> None:
    """A capture with a dense batch that prepares no MQA query: Hypothesis comes to the simplest such capture."""
    fault = graph_fault("query-not-captured")
    found = search(setup(fault.subject), 12, steps=2, fault=fault)
    assert found is not None and found.told.startswith(f"{fault.check}: ")
    assert str(found.sequence) == "PIECEWISE 1,4 at 6: a1"
    assert parse(str(found.sequence)) == found.sequence
