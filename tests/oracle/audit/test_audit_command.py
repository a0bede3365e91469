"""``attnoracle audit``: exit codes, what is printed in 80 columns, and the document."""

import json
import re

import pytest


def test_it_prints_the_kill_matrix_and_the_figures_in_80_columns(command):
    code, out, _ = command("--fault", "relu-missing", "--fault", "lse-*", "--good-runs", "4")

    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "indexer" in out and "by it alone" in out and "never the only killer here" in out
    assert "4 good runs, 0 false alarms" in " ".join(out.split())


def test_a_survivor_fails_and_is_named(command, harmless):
    code, out, _ = command("--fault", harmless.name)

    assert code == 1
    assert "SURVIVED  nothing-at-all  (merge_lse)" in out and "Computes what it should." in out
    assert "0 of 1 fault killed" in out


def test_a_false_alarm_fails_and_is_named(command, monkeypatch):
    from attnoracle.oracle.audit import good
    from attnoracle.oracle.faults import fault

    wrong = fault("relu-missing").implementation()
    monkeypatch.setattr(good, "good_implementations", lambda: {wrong.name: wrong})

    code, out, _ = command("--fault", "relu-missing", "--good-runs", "3")

    assert code == 1 and "FALSE ALARM  indexer_scores/fault-relu-missing" in out
    # Not every kind of input has a negative product under a weight that counts.
    assert re.search(r"3 good runs, [123] false alarms? \(chance below [01][.\d]* at 95%\)", " ".join(out.split()))


def test_the_document_has_faults_good_runs_and_summary(command):
    code, out, err = command("--fault", "relu-missing", "--good-runs", "3", "--json", "-")
    document = json.loads(out)

    assert code == 0 and "1 of 1 fault killed" in err
    assert document["schema"] == {"name": "attnoracle.audit", "version": 1}
    (one,) = document["faults"]
    expected = {
        "name",
        "operator",
        "theme",
        "planted_in",
        "killed",
        "killers",
        "sole_killer",
        "case",
        "source",
        "escapes",
    }
    assert expected <= set(one)
    assert (one["name"], one["operator"], one["killed"]) == ("relu-missing", "indexer_scores", True)
    assert sum(good["runs"] for good in document["good"]) == 3
    assert {"implementation", "runs", "rejected"} <= set(document["good"][0])
    summary = {"faults", "killed", "kill_rate", "good_runs", "false_alarms", "false_alarm_upper_bound"}
    assert summary | {"missed_by_other_verdicts"} <= set(document["summary"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "relu-mising"], "unknown fault 'relu-mising'; nearest: relu-missing"),
        (["--check", "elemnt"], "unknown check 'elemnt'; nearest: element"),
        (["--fault", "relu-missing", "--check", "sequence"], "no fault is left"),
        (["--quick", "--write"], "--write: takes a whole audit"),
        (["--json", "/nowhere/at/all.json"], "no folder"),
        (["--good-runs", "1", "--resume", "/nowhere/at/all"], "cannot be read and written"),
    ],
    ids=["fault", "check", "nothing-left", "write", "json", "resume"],
)
def test_wrong_usage_says_what_to_do(command, arguments, message):
    code, out, err = command(*arguments)

    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_check_chooses_the_faults_that_it_is_expected_to_kill(command):
    code, out, _ = command("--check", "sequence", "--fault", "*-cached-by-shape", "--json", "-")

    assert code == 0
    assert {one["expected_check"] for one in json.loads(out)["faults"]} == {"sequence"}
