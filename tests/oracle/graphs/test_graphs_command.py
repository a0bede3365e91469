"""``attnoracle graphs``: what it prints, writes and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnoracle.oracle.cli.app import main


def test_a_sequence_and_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "graphs.json"
    line = "PIECEWISE 8 at 20: a6; a1"
    command = ["graphs", "--device", "cpu", "--sequence", line, "--fault", "pr-52512", "-j", "1", "--json", str(file)]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "graphs are emulated on the CPU" in told and "1 of 1 fault caught" in told
    assert max(len(row) for row in told.splitlines() if not row.startswith("pr-52512:")) <= 80
    document = json.loads(file.read_text())
    assert document["schema"] == {"name": "attnoracle.graphs", "version": 1}
    assert [step["replayed"] for step in document["steps"]] == [None, "a6", "a1"]
    assert {step["status"] for step in document["steps"]} == {"PASS"}
    assert document["steps"][1]["captured"] == "at 20" and document["summary"]["graphs"] == "emulated"
    (fault,) = document["faults"]
    assert fault["caught"] and fault["expected_check"] == "route-trace" and "vllm#52512" in fault["source"]


def test_a_search_prints_a_fixture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tomllib

    from attnoracle.oracle.graphs.sequences import parse

    assert main(["graphs", "--device", "cpu", "--search", "12", "--fault", "query-not-captured"]) == 0
    (theme,) = tomllib.loads(capsys.readouterr().out).values()
    assert theme["subjects"] == ["fused"] and parse(theme["sequences"][0])


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graphs", "--list"]) == 0
    told = capsys.readouterr().out
    assert "routes-padded: " in told and "superset: " in told and "route-frozen [route-trace]" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--fault", "pr-5251"], "unknown graph fault 'pr-5251'; nearest: pr-52512"),
        (["--theme", "route"], "unknown theme 'route'"),
        (["--subject", "fusd"], "unknown subject 'fusd'; nearest: fused"),
        (["--sequence", "FULL 4: a1"], "expected"),
    ],
    ids=["fault", "theme", "subject", "sequence"],
)
def test_bad_input(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graphs", "--device", "cpu", *arguments]) == 2
    assert told in capsys.readouterr().err
