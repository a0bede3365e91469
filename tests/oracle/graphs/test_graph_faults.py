"""Every planted graph fault is seen by the check that it names; every check has such a fault."""

from __future__ import annotations

import pytest

from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults.listing import every_fault
from attnoracle.oracle.graphs.faults import GRAPH_FAULTS, GraphFault, graph_fault
from attnoracle.oracle.graphs.matrix import VARIANTS, faults, incident, run
from attnoracle.oracle.graphs.violation import CHECKS, INVARIANTS


@pytest.mark.parametrize("fault", GRAPH_FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_caught_by_name(fault: GraphFault) -> None:
    (job,) = faults([fault], "cpu")
    result = run(job)
    assert result.met, f"{result.error}; seen by {result.seen_by}"
    assert result.telling.startswith(f"{fault.check}: ")


def test_every_check_has_a_fault() -> None:
    assert len(GRAPH_FAULTS) == len({fault.name for fault in GRAPH_FAULTS}) >= 15
    covered = {fault.check for fault in GRAPH_FAULTS}
    assert set(INVARIANTS) <= covered
    assert set(CHECKS) - covered == set()


def test_an_unknown_fault_has_near_names() -> None:
    with pytest.raises(BadInput, match="nearest: route-frozen"):
        graph_fault("route-froze")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_incident_under_graphs(name: str) -> None:
    """Captured with a long batch: short prefills fail in the faulty state, and in no other."""
    result = next(run(job) for job in incident("cpu") if job.name == name)
    bad = [step.number for step in result.steps if step.violations]
    assert bad == ([2, 4, 5] if VARIANTS[name].faulty else [])
    assert result.met
    if VARIANTS[name].faulty:
        said = [str(violation) for step in result.steps for violation in step.violations]
        assert any("route sparse_mqa; an eager step: route dense_mha" in line for line in said)
        assert any(line.startswith("outputs: step 2") for line in said)


def test_one_list_holds_every_fault() -> None:
    listed = every_fault()
    assert len({(one.kind, one.name) for one in listed}) == len(listed)
    assert {one.kind for one in listed} == {"operator", "layer", "graph"}
    assert all(one.expected and one.planted_in for one in listed)
    assert all(one.source for one in listed if one.kind != "operator")
