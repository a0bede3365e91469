"""Condensed reports keep every verdict, and everything about a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnoracle.benchmarks.condense import main

PASSED = {
    "case": {"id": "a:b", "seed": 0}, "implementation": "o/i", "status": "PASS", "reason": "", "worst_ratio": 0.5,
    "seconds": 0.1, "device": "cpu", "worst": [1, 2, 3], "measures": {"row": 0.1},
}  # fmt: skip


def test_a_report_shrinks_and_failures_stay_whole(tmp_path: Path) -> None:
    failed = PASSED | {"status": "FAIL", "reason": "off"}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"schema": {"name": "x", "version": 1}, "summary": {}, "verdicts": [PASSED, failed]}))
    assert main([str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["schema"] == {"name": "x", "version": 1}
    first, second = document["verdicts"]
    assert first == {"case": "a:b"} | {k: PASSED[k] for k in first if k != "case"} and "worst" not in first
    assert second == failed
    assert main([str(file)]) == 0 and json.loads(file.read_text()) == document


def test_relations_that_do_not_apply_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "properties.json"
    held, silent = {"name": "repeat", "status": "held"}, {"name": "key-order", "status": "not applicable"}
    file.write_text(json.dumps({"command": ["attnoracle", "--json", "/a/b.json"], "properties": [held, silent]}))
    assert main([str(file)]) == 0
    assert json.loads(file.read_text()) == {"command": ["attnoracle", "--json", "b.json"], "properties": [held]}


def test_no_file_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "condense FILE" in capsys.readouterr().err
