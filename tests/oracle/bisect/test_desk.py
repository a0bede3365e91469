"""Several looks at once: what is found, and what counts, is the same as with one after another."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future
from itertools import islice

import pytest

from attnoracle.oracle.bisect import desk as desks
from attnoracle.oracle.bisect import packages
from attnoracle.oracle.bisect.bisection import bisect
from attnoracle.oracle.bisect.foresight import ahead
from attnoracle.oracle.bisect.journal import NAME, Journal
from attnoracle.oracle.bisect.look import Settings
from attnoracle.oracle.bisect.noisy import Tally, posterior
from attnoracle.oracle.bisect.probe import run
from attnoracle.oracle.bisect.search import Certain
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.fleet.calls import ThreadCalls


class Away(Exception):
    """A worker that is gone."""


class Rounds:
    """Slots that all answer at once, a round later; ``lose``: how often the calls at a point lose their worker."""

    away = False

    def __init__(self, slots, patch, lose=None):
        self.slots, self.lose = slots, Counter(lose or {})
        self.rounds, self.most, self.stopped = 0, 0, 0
        self._pending = []
        patch.setattr(desks, "wait", self._round)

    def call(self, function, *arguments):
        future = Future()
        self._pending.append((future, function, arguments))
        self.most = max(self.most, len(self._pending))
        return future

    def _round(self, futures, **_):
        self.rounds += 1
        for future, function, arguments in self._pending:
            if self.lose[arguments[0]]:
                self.lose[arguments[0]] -= 1
                future.set_exception(Away())
            else:
                future.set_result(function(*arguments))
        self._pending.clear()

    def stop(self, future):
        self.stopped += 1
        self._pending = [one for one in self._pending if one[0] is not future]

    def lost(self, error):
        return isinstance(error, Away)

    def close(self):
        self._pending.clear()


def _flaky(wrong, seed):
    """Labels that are the wrong ones with some chance, decided by the point and by how often it was looked at."""
    seen = Counter()

    def label(place, right):
        seen[place] += 1
        lie = random.Random(f"{seed} {place} {seen[place]}").random() < wrong
        return {"good": "bad", "bad": "good"}[right] if lie else right

    return label


def _labels(kind, seed):
    change = random.Random(seed).randrange(2, 58)
    labels = ["good"] * change + ["bad"] * (60 - change)
    if kind == "skips":
        labels[20:35] = ["skip"] * 15
    if kind == "flaky":
        tell = _flaky(0.2, seed)
        return [lambda n, place=place, right=right: tell(place, right) for place, right in enumerate(labels)]
    return labels


def _counted(found):
    return [(point, look.label, look.detail) for point, look in found.evidence]


@pytest.mark.parametrize("kind", ["certain", "skips", "flaky"])
@pytest.mark.parametrize("slots", [2, 7])
def test_what_is_found_and_what_counts_does_not_depend_on_the_slots(line, monkeypatch, kind, slots):
    for seed in range(1 if kind == "flaky" else 4):
        settings = Settings(flaky=kind == "flaky")
        alone = bisect(line(_labels(kind, seed)), "p0", "p59", Journal(None, {}), settings)
        axis = line(_labels(kind, seed))
        several = bisect(axis, "p0", "p59", Journal(None, {}), settings, hands=Rounds(slots, monkeypatch))
        assert _counted(several) == _counted(alone)
        assert (several.last, several.first, several.between) == (alone.last, alone.first, alone.between)
        assert (several.confidence, several.looks) == (alone.confidence, alone.looks)
        assert len(axis.asked) == several.looks + several.ahead


def test_seven_slots_give_three_bits_a_round(line, monkeypatch):
    """1,024 points: the ends and, meanwhile, the first looks between; three rounds for the rest; both sides again."""
    labels = ["good"] * 700 + ["bad"] * 324
    hands = Rounds(7, monkeypatch)
    found = bisect(line(labels), "p0", "p1023", Journal(None, {}), hands=hands)
    assert found.first == "p700"
    assert found.looks == 16
    assert hands.rounds <= 6 and hands.most == 7


def test_the_likeliest_looks_come_first():
    wishes = list(islice(ahead(Certain.of(17, "good"), lambda point, number: None), 7))
    assert wishes[0] == (8, 0)
    assert sorted(wishes[:3]) == [(4, 0), (8, 0), (12, 0)]
    assert sorted(point for point, _ in wishes) == [2, 4, 6, 8, 10, 12, 14]
    # What is known already is followed on one side alone.
    known = list(islice(ahead(Certain.of(17, "good"), lambda point, number: "bad" if point == 8 else None), 4))
    assert all(point <= 8 for point, _ in known)


def test_a_flaky_verdict_is_evidence_once(line):
    """The posterior probability is that of the looks in the evidence."""
    found = bisect(line(_labels("flaky", 3)), "p0", "p59", Journal(None, {}), Settings(flaky=True))
    tally = Tally.of(60)
    for point, look in found.evidence:
        tally.add(int(point[1:]), look.label)
    chances = posterior(tally, "good")
    assert found.confidence == pytest.approx(float(chances[int(found.last[1:])]))
    assert tally.looks.sum() == found.looks


def test_a_lost_worker_costs_a_retry_and_a_point_that_loses_three_is_skipped(line, monkeypatch):
    labels = ["good"] * 20 + ["bad"] * 20
    alone = bisect(line(labels), "p0", "p39", Journal(None, {}))
    hands = Rounds(3, monkeypatch, lose={f"p{n}": 2 for n in range(40)})
    found = bisect(line(labels), "p0", "p39", Journal(None, {}), hands=hands)
    assert _counted(found) == _counted(alone)
    hands = Rounds(3, monkeypatch, lose={"p20": 99})
    found = bisect(line(labels), "p0", "p39", Journal(None, {}), hands=hands)
    assert found.between == ("p20",)
    assert any(look.detail == "3 workers were lost with it: Away" for _, look in found.evidence)


def test_the_journal_says_what_was_made_ahead_and_a_second_run_makes_nothing_twice(line, monkeypatch, tmp_path):
    labels = ["good"] * 40 + ["bad"] * 60
    axis = line(labels)
    found = bisect(axis, "p0", "p99", Journal(tmp_path, {}), hands=Rounds(4, monkeypatch))
    records = [json.loads(text) for text in (tmp_path / NAME).read_text().splitlines()]
    counted, early = (Counter(one["point"] for one in records if kind in one) for kind in ("look", "ahead"))
    assert sum(counted.values()) == found.looks and sum((early - counted).values()) == found.ahead > 0
    # Stopped in the middle: what was made ahead is used, what counted counts once.
    part = tmp_path / "part"
    part.mkdir()
    lines = (tmp_path / NAME).read_text().splitlines(keepends=True)
    (part / NAME).write_text("".join(lines[:9]))
    rest = line(labels)
    again = bisect(rest, "p0", "p99", Journal(part, {}), hands=Rounds(4, monkeypatch))
    assert _counted(again) == _counted(found)
    made = Counter(rest.asked)
    kept = Counter(one["point"] for one in map(json.loads, lines[1:9]) if "ahead" in one)
    assert all(made[point] + kept[point] <= 3 for point in kept)
    assert bisect(line(labels), "p0", "p99", Journal(part, {})).looks == found.looks


def test_what_a_look_raises_ends_the_search(line, monkeypatch):
    axis = line(["good", "bad"])
    axis.look = lambda point, log: (_ for _ in ()).throw(BadInput(f"no repository for {point}"))
    with pytest.raises(BadInput, match="no repository for p1"):
        bisect(axis, "p0", "p1", Journal(None, {}), hands=Rounds(2, monkeypatch))


def test_a_call_that_nobody_waits_for_ends_with_what_it_started(tmp_path):
    hands = ThreadCalls(2)
    arguments = {"cwd": tmp_path, "env": os.environ, "timeout": 60.0, "log": ""}
    calls = [hands.call(lambda: run("sleep 50 & sleep 60; touch late", **arguments)) for _ in range(3)]
    started = time.monotonic()
    time.sleep(0.2)
    hands.stop(calls[0])
    assert calls[0].result(timeout=20).code == -9
    hands.close()
    assert time.monotonic() - started < 20
    assert all(call.done() for call in calls) and not (tmp_path / "late").exists()


def test_two_looks_at_one_release_make_its_environment_once(monkeypatch, tmp_path):
    made = []

    def make(folder, ready, wanted, log):
        made.append(folder)
        time.sleep(0.2)
        folder.mkdir()
        ready.write_text("{}")
        return folder / "bin" / "python", ""

    monkeypatch.setattr(packages, "_made", make)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(packages.environment(tmp_path, {"some": "1.0"}, "")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [(made[0] / "bin" / "python", "")] * 3


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["knobs", "--good", "A=1", "--bad", "A=2", "--run", "true", "--jobs", "3"], "depends on the last one"),
        (["stages", "pr-52512", "--good", "mha-branch", "--bad", "faulty", "--engine", "ray"], "one process"),
        (["sizes", "k", "--good", "1", "--bad", "2", "--address", "h:1"], "goes with --engine ray"),
    ],
)
def test_where_several_looks_make_no_sense_they_are_refused(attnoracle, arguments, why):
    case = ["--case", "merge_lse:tiny:h1:q2:k2:fp32:randn:contiguous:-:s0", "-i", "merge_lse/torch"]
    code, _, err = attnoracle("bisect", *arguments, *(case if arguments[0] == "sizes" else []))
    assert code == 2 and why in " ".join(err.split())
