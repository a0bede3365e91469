"""The committed search for hidden faults is one over the faults that there are, and the README says what it gave."""

import json
from pathlib import Path

import pytest

from attnoracle.oracle.case import Case
from attnoracle.oracle.faults.hidden import HIDDEN, hidden

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "campaign-2026-11-30" / "hidden.json"


def test_the_result_is_about_these_faults_and_its_cases_show_them():
    document = json.loads(RESULT.read_text())
    faults, summary = document["faults"], document["summary"]
    assert [(one["name"], one["fault"]) for one in faults] == [(one.name, one.fault) for one in HIDDEN]
    for guide in ("coverage", "random"):
        found = [one for one in faults if one[guide]["found"]]
        assert len(found) == summary[guide]["found"] and summary[guide]["of"] == len(HIDDEN)
        assert all(hidden(one["name"]).acts_on(Case.parse(one[guide]["case"])) for one in found)
    guided, drawn = summary["coverage"], summary["random"]
    assert summary["minutes"] == 10 and guided["found"] >= 9
    assert guided["seconds"] == pytest.approx(600, abs=30) and drawn["seconds"] == pytest.approx(600, abs=30)
    told = (ROOT / "README.md").read_text()
    assert f"finds {guided['found']} in {guided['cases']:,} cases, a random search {drawn['found']}" in told
