"""Budget, corpus, resumption and findings, without kernels."""

import json

import pytest

from attnoracle.oracle.campaign.cause import look_into
from attnoracle.oracle.campaign.corpus import Corpus
from attnoracle.oracle.campaign.findings import Findings
from attnoracle.oracle.campaign.guide import ROUND
from attnoracle.oracle.campaign.space import Space
from attnoracle.oracle.case import Case
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.verdict import Finding, Verdict


def told(night):
    """Everything that has to be the same, whatever happened on the way."""
    corpus = night.corpus
    results = {place: (result.status, result.ratio) for place, result in corpus.results.items()}
    findings = [(one.implementation, one.place, one.count, one.smallest.id) for one in night.findings]
    return corpus.plans, results, findings


def test_a_night_judges_so_many_cases_and_files_one_finding_a_kernel(go):
    night = go("corpus", 3 * ROUND + 5)
    assert night.cases == len(night.corpus.results) == 3 * ROUND + 5
    assert night.counts["FAIL"] > 4
    assert {one.implementation for one in night.findings} == {"dense_mha/mine", "sparse_mqa/mine"}
    assert sum(one.count for one in night.findings) == night.counts["FAIL"] == night.findings.failures


def test_an_interrupted_campaign_goes_on_to_the_same_corpus_and_findings(go, engine):
    whole = told(go("whole", 70))
    first = go("parts", 70, engine=engine(stop_after=23))
    assert first.cases == 23
    second = go("parts", 47)
    assert second.cases == 47 and told(second) == whole
    assert [night["cases"] for night in second.corpus.nights] == [23, 47]


def test_what_a_kill_left_of_the_file_is_gone_on_from(go, tmp_path):
    whole = told(go("whole", 40))
    go("killed", 40)
    file = tmp_path / "killed" / "corpus.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"night"' not in line][:30]
    results = sum('"place"' in line for line in kept)
    file.write_text("".join(kept) + '{"place": 39, "sta')  # kill -9 in the middle of a line
    night = go("killed", 40 - results)
    assert told(night) == whole and night.cases == 40 - results


def test_nothing_is_judged_twice(go, engine):
    first, again = engine(), engine()
    go("corpus", 40, engine=first)
    go("corpus", 40, engine=again)
    places = [job for job, _ in first.asked + again.asked if job >= 0]
    assert sorted(places) == list(range(80))


def test_a_later_night_tries_old_findings_first_and_says_which_are_gone(go, engine):
    go("corpus", 60)
    cured = engine(lambda case, name, device: Verdict(case=case, implementation=name, status="PASS"))
    night = go("corpus", 5, engine=cured)
    assert {one.again for one in night.findings} == {"PASS"} and night.counts == {"PASS": 5}


def test_what_is_planned_for_others_stays_planned(go):
    go("corpus", 10)
    night = go("corpus", 40, space=Space(("dense_mha/mine",), ("tiny",)))
    left = [pair for place, pair in night.corpus.planned() if place not in night.corpus.results]
    assert {name for _, name in left if name != "dense_mha/mine"} == {"sparse_mqa/mine"}
    assert all(one.again or one.implementation == "sparse_mqa/mine" or one.place >= 10 for one in night.findings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not ours at all", "line 1: expected the head of a corpus"),
        ('{"schema": "attnoracle.check-state/1"}\n', "line 1: expected the head of a corpus"),
        ('{"schema": "attnoracle.corpus/2"}\n', "version 2, this attnoracle reads 1"),
        ('{"schema": "attnoracle.corpus/1"}\n{"place": 0}\n', "line 2: damaged"),
        ('{"schema": "attnoracle.corpus/1"}\n{"round": 0, "pairs": [["x", "y"]]}\n', "line 2: damaged"),
        ('{"schema": "attnoracle.corpus/1"}\n{"round": 1, "pairs": []}\n', "a line is missing"),
    ],
)
def test_a_file_that_is_no_corpus_of_ours_is_refused_and_kept(tmp_path, text, message):
    file = tmp_path / "corpus.jsonl"
    file.write_text(text)
    with pytest.raises(BadInput, match=message) as error:
        Corpus(tmp_path)
    assert str(file) in str(error.value) and file.read_text() == text


def test_a_corpus_belongs_to_one_campaign_at_a_time(tmp_path):
    with (
        Corpus(tmp_path / "corpus"),
        pytest.raises(BadInput, match="another campaign is at work on it"),
        Corpus(tmp_path / "corpus"),
    ):
        pass
    with Corpus(tmp_path / "corpus"):
        pass


def test_a_corpus_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "no" / "folder"):
        with pytest.raises(BadInput, match=r"expected a folder|no folder"):
            Corpus(place)


# Findings.


def failing(options=(), checks=("element",), name="sparse_mqa/mine"):
    case = Case(operator="sparse_mqa", geometry="tiny", heads=1, q_lens=(4,), k_lens=(9,), topk=4, options=options)
    found = tuple(Finding(check, "off", True) for check in checks)
    return Verdict(case=case, implementation=name, status="FAIL", findings=found)


def settled(findings, place, options=(), checks=("values",)):
    case = failing(options).case
    findings.settle(place, {"case": case.id, "signature": [[check, "out", ""] for check in checks], "note": ""})


def test_failures_with_the_trigger_of_a_finding_are_one_and_others_are_looked_into():
    asked = []
    findings = Findings(lambda finding: asked.append(finding.place))
    findings.file(0, failing(("duplicates", "sink")))
    findings.file(1, failing(("sink",)))
    assert (asked, len(findings), findings.failures) == ([0], 1, 2), "the second waits for the trigger of the first"
    settled(findings, 0, ("sink",))
    assert [one.count for one in findings] == [2]
    findings.file(2, failing(("lengths",)))
    assert asked == [0, 2], "it has not the option that the first needs"
    settled(findings, 2, ("lengths",))
    findings.file(3, failing(("lengths", "sink")))
    assert [one.count for one in findings] == [3, 1]


def test_two_that_shrink_to_the_same_become_one_and_another_check_is_another_failure():
    findings = Findings(lambda finding: None)
    findings.file(0, failing(("sink",)))
    settled(findings, 0)
    findings.file(1, failing((), ("element", "memory")))
    settled(findings, 1)
    assert [one.count for one in findings] == [2]
    findings.file(2, failing((), ("structure",)))
    findings.file(3, failing((), name="sparse_mqa/other"))
    assert len(findings) == 3


def test_looking_into_a_failure_gives_the_smallest_case_a_bundle_and_a_cause():
    start = "merge_lse:tiny:h3:q9,20:k9,20:bf16:randn:strided:-:s1"
    found = look_into(start, "fault:merge-lse-is-max", "cpu", False, 30.0)
    assert Case.parse(found["case"]).queries < 9 and found["signature"] and found["conclusion"]
    record = json.loads(found["files"]["bundle.json"])
    assert record["original"] == start and record["case"]["id"] == found["case"]
    quiet = look_into(start, "merge_lse/torch", "cpu", False, 30.0)
    assert quiet["case"] == "" and "does not fail" in quiet["note"]
