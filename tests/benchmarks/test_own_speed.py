"""The oracle's own speed: what is measured, and that a slower or hungrier oracle shows."""

from __future__ import annotations

import json
import time

import pytest
import torch

from attnoracle.benchmarks import own_speed
from attnoracle.benchmarks.peak import peak_of
from attnoracle.optimized import triton_runtime
from attnoracle.oracle.errors import BadInput

ONE = {"topk_select by keys": (("h1:q4:k64:top16", "h1:q4:k128:top16"), "sort")}


def test_peak_counts_what_lives_at_once():
    def run():
        a = torch.zeros(1000)
        b = a + 1
        del a
        view = b[:10]
        return b * 2, view

    _, peak = peak_of(run, "cpu")
    assert peak == 2 * 4000


def test_watching_memory_does_not_bring_triton_uninterpreted(monkeypatch):
    """torch's dispatch modes import Triton, which would be compiled for good."""
    prepared = []
    monkeypatch.setattr(triton_runtime, "prepare_if_available", lambda: prepared.append("Triton"))
    assert peak_of(lambda: list(prepared), "cpu")[0] == ["Triton"]


def test_a_slower_and_hungrier_oracle_is_a_regression(monkeypatch):
    before = own_speed.measure(ONE, device="cpu", times=3)
    assert [one.seconds > 0 and one.peak_bytes > 0 for one in before] == [True, True]
    right = own_speed.check

    def slow(case, implementation, **options):
        waste = torch.zeros(1 << 20)
        time.sleep(0.3)
        verdict = right(case, implementation, **options)
        del waste
        return verdict

    monkeypatch.setattr(own_speed, "check", slow)
    found = own_speed.regressions([one.as_dict() for one in before], own_speed.measure(ONE, device="cpu", times=1))
    assert {one.what for one in found} == {"time", "memory"} and all(one.factor >= 1.5 for one in found)


def test_below_the_limit_nothing_is_said():
    def figure(units, peak):
        return own_speed.Figure("series", "case", units, units, peak)

    before = [figure(10.0, 1000).as_dict()]
    assert own_speed.regressions(before, [figure(14.9, 1499)]) == []
    assert len(own_speed.regressions(before, [figure(15.0, 1500)])) == 2
    assert own_speed.regressions([], [figure(99.0, 9999)]) == []


def test_a_wrong_verdict_has_no_speed(monkeypatch):
    with pytest.raises(BadInput, match="expected PASS, got UNSUPPORTED"):
        own_speed.measure({"topk_select by keys": (("h1:q4:k64:top16",), "hopper")}, device="cpu", times=1)


@pytest.mark.parametrize("text", ["", "[]", '{"results": []}', '{"schema": {"name": "x"}, "results": [{}]}'])
def test_a_file_that_is_none(tmp_path, text, capsys):
    path = tmp_path / "old.json"
    path.write_text(text)
    assert own_speed.main(["--against", str(path)]) == 2
    assert "expected a file that this wrote" in capsys.readouterr().err


def test_the_command_writes_what_a_later_one_compares_with(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(own_speed, "settle", lambda wanted: wanted)
    monkeypatch.setattr(own_speed.measure, "__kwdefaults__", {"times": 2})
    monkeypatch.setattr(own_speed.measure, "__defaults__", (ONE,))
    path = tmp_path / "now.json"
    assert own_speed.main(["--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert written["schema"]["name"] == "attnoracle.own_speed" and written["summary"]["regressions"] == 0
    assert len(own_speed.read(path)) == 2
    assert "checks a second" in capsys.readouterr().out
