"""``attnoracle replay``: exit codes, documents, what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.replay import incident as incidents

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def attnoracle(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def attnoracle(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return attnoracle


ONE = ("replay", "pr-52512", "--variant", "capability-off", "--length", "129")


def test_list(attnoracle: Run) -> None:
    code, out, _ = attnoracle("replay", "--list")
    assert code == 0
    assert [row.partition(":")[0] for row in out.splitlines() if row[0] != " "] == list(incidents.incidents())
    assert "vllm-project/vllm#52512" in out
    code, out, _ = attnoracle("replay", "pr-52512", "--list")
    assert code == 0
    assert [row.partition(":")[0] for row in out.splitlines()] == [
        f"pr-52512 {name}" for name in ("faulty", "faulty-stale", "forced-mqa", "capability-off", "mha-branch")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("replay", "pr-1"), "unknown incident 'pr-1'; nearest: pr-52512", id="incident"),
        pytest.param(("replay",), "expected an incident or --all, got none; known: pr-52512", id="none"),
        pytest.param(
            ("replay", "pr-52512", "--variant", "x"), "capability-off, faulty, faulty-stale, forced-mqa", id="variant"
        ),
        pytest.param(("replay", "pr-52512", "--length", "3"), "27", id="length"),
        pytest.param(("replay", "vllm-54541", "--length", "30"), "expected an incident of prompts", id="not-prompts"),
        pytest.param(("replay", "--all", "pr-52512"), "expected no incident", id="all-and-one"),
    ],
)
def test_what_cannot_be_asked_is_exit_2(attnoracle: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = attnoracle(*arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_documents(attnoracle: Run) -> None:
    code, out, err = attnoracle(*ONE, "--json", "-")
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == {"name": "attnoracle.replay", "version": 1}
    assert document["summary"]["as_expected"] is True
    (step,) = document["steps"]
    wanted = {
        "variant": "capability-off",
        "prompt_length": 129,
        "route_decided": "sparse_mqa",
        "route_executed": "sparse_mqa",
        "indexer_skipped": False,
        "minus_one_share": 0.0,
        "status": "PASS",
        "detected_by": [],
    }
    assert step.items() >= wanted.items()
    assert len(step["tokens"]) == 8
    assert max(map(len, err.splitlines())) <= 110
    assert "seen so in 1 step (0 fail)" in err


def test_what_was_not_expected_is_exit_1(attnoracle: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = incidents.load_incident("pr-52512")
    fails: Any = replace(right.fails, first=130)
    monkeypatch.setattr(incidents, "load_incident", lambda name: replace(right, fails=fails, companions=()))
    code, out, _ = attnoracle("replay", "pr-52512", "--variant", "faulty", "--length", "129")
    assert code == 1
    assert "not so in 1 of 1 step: faulty 129" in out


@pytest.mark.parametrize("edit", ["wrong = 1\n", ""], ids=["unknown-key", "missing-key"])
def test_an_incident_file_that_cannot_be(tmp_path: Path, edit: str) -> None:
    text = (incidents.INCIDENTS / "pr-52512.toml").read_text(encoding="utf-8")
    broken = edit + (text if edit else text.replace('title = "', '# "'))
    path = tmp_path / "broken.toml"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(BadInput, match=r"broken\.toml: expected the keys"):
        incidents.read_incident(path)
