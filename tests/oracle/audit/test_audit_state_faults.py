"""Faults of layers and graphs in the audit: listed, killed by their contracts, and seen where they are not."""

from attnoracle.oracle.audit.committed import recorded
from attnoracle.oracle.audit.readme import block
from attnoracle.oracle.audit.result import Audit
from attnoracle.oracle.audit.state_faults import Played, counted, played
from attnoracle.oracle.graphs.faults import GRAPH_FAULTS
from attnoracle.oracle.layer.fault import LayerFault
from attnoracle.oracle.layer.faults import LAYER_FAULTS
from attnoracle.oracle.reports.audit_report import document
from attnoracle.reference.layer import SparseMLALayer


def test_they_are_killed_and_listed():
    found = played(0, LAYER_FAULTS[1:4], GRAPH_FAULTS[:2])
    assert [one.planted_in for one in found] == ["layer"] * 3 + ["graph"] * 2
    assert all(one.killed for one in found)
    assert counted(found) == {"layer": {"faults": 3, "killed": 3}, "graph": {"faults": 2, "killed": 2}}
    audit = Audit((), (), 1.0, 0, found)
    listed = document(["attnoracle", "audit"], {}, audit)["faults"]
    assert [one["planted_in"] for one in listed] == ["layer"] * 3 + ["graph"] * 2
    assert all(one["killed"] and one["killers"] and one["source"] for one in listed)
    assert audit.summary()["state_faults"]["layer"]["killed"] == 3


def test_a_right_layer_survives(monkeypatch):
    monkeypatch.setattr("attnoracle.oracle.layer.play.SEQUENCES", 1)
    right = LayerFault(name="right", source="none", rules=("route",), make=SparseMLALayer)
    found = played(0, (right,), ())
    assert [(one.killers, one.killed) for one in found] == [((), False)]
    assert Audit((), (), 1.0, 0, found).exit_code == 1


def test_the_same_seed_plays_the_same_sequences():
    assert [(one.killers, one.where) for one in played(5, LAYER_FAULTS[3:5], ())] == [
        (one.killers, one.where) for one in played(5, LAYER_FAULTS[3:5], ())
    ]


def test_the_readme_counts_them_where_the_file_has_them():
    audit_file = recorded()
    bare = block(audit_file)
    assert "Planted in a layer" not in bare or "state_faults" in audit_file["summary"]
    more = {"state_faults": {"graph": {"faults": 38, "killed": 38}}}
    with_them = audit_file | {"summary": audit_file["summary"] | more}
    assert "Planted in a graph, where no kernel is wrong: 38 of 38 killed" in block(with_them)


def test_what_saw_it_must_be_what_was_expected():
    one = Played("x", "layer", "", "", ("route",), ("raised",), "", 0.0)
    assert not one.killed and one.record()["status"] == "survived"
