"""An audit from plan to figures: kills, survivors, false alarms, and going on after an interruption."""

import dataclasses
import json
from pathlib import Path

import pytest

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.oracle.audit import good
from attnoracle.oracle.audit.plan import Settings, plan
from attnoracle.oracle.audit.result import KILLERS, upper_bound
from attnoracle.oracle.audit.trial import FAULT, candidates, try_fault
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.faults import FAULTS, fault
from attnoracle.oracle.inputs import OPTIONS


def without_times(audit):
    return [dataclasses.replace(outcome, seconds=0.0) for outcome in (*(t.outcome for t in audit.trials), *audit.runs)]


def test_a_small_audit_kills_its_faults_and_rejects_nothing(whole, small):
    found = whole
    assert {trial.fault.name: trial.killed for trial in found.trials} == dict.fromkeys(small.faults, True)
    killers = {trial.fault.name: trial.outcome.checks for trial in found.trials}
    assert killers["selection-cached-by-shape"] == ("sequence",)
    assert {"element", "row", "lse"} <= set(killers["causal-off-by-one"])
    assert (len(found.runs), found.rejections, found.exit_code) == (16, (), 0)
    assert len({run.name for run in found.runs}) >= 10, "good runs are spread over the implementations"


def test_the_figures_follow_from_the_outcomes(whole, small):
    summary = whole.summary()

    assert (summary["faults"], summary["killed"], summary["kill_rate"]) == (3, 3, 1.0)
    assert summary["sole_kills"]["sequence"] == 1
    assert "sequence" not in summary["checks_never_needed"] and "bias" in summary["checks_never_needed"]
    assert summary["false_alarm_upper_bound"] == pytest.approx(1 - 0.05 ** (1 / 16))
    assert set(summary["kills"]) <= set(KILLERS)
    assert summary["missed_by_other_verdicts"]["cosine"] == sum("cosine" in fault(n).escapes for n in small.faults)


@pytest.mark.parametrize(
    ("rejected", "runs", "confidence", "bound"),
    [
        (0, 2000, 0.95, 1 - 0.05 ** (1 / 2000)),
        (0, 10, 0.975, 0.30850),
        (1, 10, 0.95, 0.39416),
        (1, 10, 0.975, 0.44502),
        (5, 5, 0.95, 1.0),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(rejected, runs, confidence, bound):
    assert upper_bound(rejected, runs, confidence) == pytest.approx(bound, abs=1e-5)


def test_an_interrupted_audit_goes_on_where_it_was(audit, whole, small, tmp_path):
    path, seen = str(tmp_path / "state"), []

    def interrupt(verdict):
        seen.append(verdict)
        if len(seen) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(small, path, interrupt)
    with open(path, "a") as file:
        file.write('{"name": "fault:cut off in the mid')
    resumed = audit(small, path, seen.append)

    assert without_times(resumed) == without_times(whole)
    assert len(seen) == len(plan(small)), "what was finished is not run again"
    lines = Path(path).read_text().splitlines()
    assert all(json.loads(line) for line in lines), "the line that was cut off is gone"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no state\n", "expected the state of an audit"),
        ("no state, no line", "expected the state of an audit"),
        ('{"schema": "attnoracle.audit-state/1", "seed": 7}\n', r"differs in .*seed"),
    ],
    ids=["not-json", "no-line", "other-seed"],
)
def test_a_file_that_is_no_state_of_this_audit_is_refused_and_kept(audit, small, tmp_path, text, message):
    (tmp_path / "state").write_text(text)
    with pytest.raises(BadInput, match=message):
        audit(small, str(tmp_path / "state"))
    assert (tmp_path / "state").read_text() == text


def test_a_fault_that_does_nothing_survives_every_case(harmless):
    verdict = try_fault(harmless, 0, "cpu")

    assert (verdict.status, verdict.findings, verdict.measures["kills"]) == ("PASS", (), 0.0)
    assert verdict.measures["cases"] == len(list(candidates(harmless, 0)))


def test_quick_takes_a_fault_of_every_theme_and_operator_the_same_each_time():
    names = [job.name for job in plan(Settings(quick=True, good_runs=0))]
    picked = [fault(name.removeprefix(FAULT)) for name in names]

    assert {(one.theme, one.operator) for one in picked} == {(one.theme, one.operator) for one in FAULTS}
    assert names == [job.name for job in plan(Settings(quick=True, good_runs=0))]
    assert names != [job.name for job in plan(Settings(quick=True, good_runs=0, seed=1))]


def test_a_fault_is_first_tried_on_a_case_that_has_what_it_names():
    for one in FAULTS:
        case = next(candidates(one, 0))
        for option in one.options:
            name, _, value = option.partition("=")
            if name in ("dtype", "kind", "layout", "heads"):
                assert str(getattr(case, name)) == value, one.name
            elif option in OPTIONS[one.operator]:
                assert option in case.options, one.name


def test_good_runs_are_distinct_and_cover_every_implementation_that_runs_here():
    pairs = good.good_runs(1000, 0, "cpu")

    assert len({(case.id, name) for case, name in pairs}) == 1000
    known = good.good_implementations()
    assert {one.name for one in IMPLEMENTATIONS} - set(known) == {*good.TOO_SLOW, *good.FOUND_WRONG}
    assert {name for _, name in pairs} >= {name for name in known if name.partition("/")[2].startswith("simulated")}


def test_an_unknown_good_implementation_gets_the_nearest_names():
    with pytest.raises(BadInput, match=r"nearest: .*dense_mha/simulated"):
        good.good("dense_mha/simulatd")
