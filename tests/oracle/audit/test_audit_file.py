"""The committed audit: it covers the catalogue as it is, nothing survived, and the README says what it says."""

import tomllib
from pathlib import Path

import pytest

from attnoracle.fixtures import PATH
from attnoracle.oracle.audit import readme
from attnoracle.oracle.audit.committed import compact, recorded
from attnoracle.oracle.audit.plan import Settings
from attnoracle.oracle.audit.result import KILLERS
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import FAULTS, VERDICTS

README = Path(__file__).parents[3] / "README.md"
SUMMARY = {
    "faults": 4,
    "survived": 0,
    "killed": 4,
    "good_runs": 2000,
    "false_alarms": 0,
    "confidence": 0.95,
    "false_alarm_upper_bound": 0.00149675,
    "kills": {"element": 2, "lse": 3},
    "sole_kills": {"element": 1, "lse": 2},
    "missed_by_other_verdicts": dict.fromkeys(VERDICTS, 1),
}


def test_it_covers_exactly_the_present_catalogue():
    assert set(recorded()["faults"]) == {fault.name for fault in FAULTS}
    assert recorded()["summary"]["faults"] == len(FAULTS)


def test_nothing_survived_and_nothing_right_was_rejected():
    summary, audit = recorded()["summary"], recorded()
    assert [name for name, entry in audit["faults"].items() if not entry["killers"]] == []
    assert {killer for entry in audit["faults"].values() for killer in entry["killers"]} <= set(KILLERS)
    assert (summary["killed"], summary["survived"], summary["not_run"]) == (len(FAULTS), 0, 0)
    assert summary["false_alarms"] == sum(entry["rejected"] for entry in audit["good"].values()) == 0
    assert summary["good_runs"] == sum(entry["runs"] for entry in audit["good"].values()) >= 2000


def test_the_figures_of_other_verdicts_are_those_of_the_present_catalogue():
    missed = {verdict: sum(verdict in fault.escapes for fault in FAULTS) for verdict in VERDICTS}
    assert recorded()["summary"]["missed_by_other_verdicts"] == missed


def test_the_readme_has_the_figures_of_the_audit_file():
    text = README.read_text(encoding="utf-8")
    assert readme.updated(text, recorded()) == text, "run attnoracle audit --write, or readme.updated, and commit"


def test_a_fault_that_was_ever_listed_is_listed_or_proved_to_be_none():
    lines = (PATH / "faults" / "ratchet.txt").read_text().splitlines()
    ever = {line for line in lines if line and not line.startswith("#")}
    proofs = tomllib.loads((PATH / "faults" / "equivalent.toml").read_text())
    present = {fault.name for fault in FAULTS}

    assert present - ever == set(), "add new faults to fixtures/faults/ratchet.txt"
    assert ever - present == set(proofs), (
        "a fault that was taken out needs its proof in fixtures/faults/equivalent.toml"
    )
    assert [name for name, entry in proofs.items() if set(entry) != {"proof"} or len(entry["proof"]) < 40] == []


def test_the_block_says_how_many_faults_each_verdict_misses():
    block = readme.block({"summary": SUMMARY})

    assert "4 of 4 are killed" in block and "2,000 runs" in block and "below 0.0015" in block
    assert "| **attnoracle** | 0 | 0% |" in block and "| cosine similarity at 0.99 | 1 | 25% |" in block
    assert "lse 3, element 2" in block
    assert set(readme.VERDICTS) == set(VERDICTS)


def test_the_block_replaces_what_stood_between_the_markers_and_nothing_else():
    text = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"
    new = readme.updated(text, {"summary": SUMMARY})

    assert new.startswith("before\n") and new.endswith("\nafter\n") and "old" not in new
    assert readme.updated(new, {"summary": SUMMARY}) == new


@pytest.mark.parametrize(
    "text", ["", f"{readme.BEGIN}", f"{readme.END} {readme.BEGIN}", f"{readme.BEGIN}{readme.END}" * 2]
)
def test_a_readme_without_its_markers_is_refused(text):
    with pytest.raises(BadInput, match="once each, in this order"):
        readme.updated(text, {"summary": SUMMARY})


def test_a_part_of_an_audit_is_no_audit_file(audit):
    with pytest.raises(BadInput, match="the audit file holds whole audits"):
        compact(audit(Settings(faults=("relu-missing",), good_runs=1)))
