"""vLLM's own functions beside ours, where its sources are: installed, or in a folder named in the environment."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.engines.agreement import Comparison, findings
from attnoracle.oracle.engines.batches import questions
from attnoracle.oracle.engines.compare_rules import compare_rules
from attnoracle.oracle.engines.source import Engine, Sources, locate
from attnoracle.oracle.engines.vllm import rules_for
from attnoracle.oracle.engines.vllm_rules import FILES, VllmRules
from attnoracle.oracle.errors import OracleError, Unsupported
from attnoracle.oracle.policies import load_rules

#: A folder with vLLM's Python sources; they are enough.
FOLDER = "ATTNORACLE_VLLM_SOURCE"
RESULT = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "vllm-0.33.0" / "engine.json"


@pytest.fixture(scope="module")
def vllm() -> Engine:
    try:
        return locate("vllm", os.environ.get(FOLDER))
    except OracleError as error:
        pytest.skip(f"{error}; or set {FOLDER}")


def differ(comparisons: list[Comparison]) -> set[str]:
    return {one.name for one in comparisons if one.disagreements}


def test_decisions_agree(vllm: Engine) -> None:
    rules = load_rules(rules_for(vllm))
    found = compare_rules(VllmRules(Sources(vllm)), rules, questions(rules, 300, 1))
    assert findings(found) == []
    assert min(one.cases for one in found) > 0


@pytest.mark.parametrize(
    ("change", "names"),
    [
        pytest.param({"indexer_skip": False}, {"skip"}, id="skip"),
        pytest.param({"tables": {}}, {"mha"}, id="table"),
        pytest.param({"dense_excludes_pcp_with_dcp": False}, {"dense"}, id="pcp-and-dcp"),
        pytest.param({"context_rows_floor": "max_num_seqs*block_size"}, {"workspace"}, id="workspace"),
        pytest.param({"gates": {}}, {"gate", "mha"}, id="gate"),
    ],
)
def test_a_rule_that_is_wrong_is_seen(vllm: Engine, change: dict[str, Any], names: set[str]) -> None:
    rules = load_rules(rules_for(vllm))
    asked = questions(rules, 400, 2)
    found = compare_rules(VllmRules(Sources(vllm)), replace(rules, **change), asked)
    assert names <= differ(found)


def test_the_command(vllm: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    source = str(vllm.root.parent)
    assert main(["engine", "vllm", "--source", source, "--batches", "30", "--cases", "0", "--json", "-"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["summary"]["errors"] == 0 and document["findings"] == []
    assert {one["name"] for one in document["comparisons"]} >= {"threshold", "split", "chunks", "guard", "mha", "skip"}
    assert max(map(len, captured.err.splitlines())) <= 80


def test_a_version_without_rules_is_said() -> None:
    with pytest.raises(Unsupported, match=r"0\.33"):
        rules_for(Engine("vllm", Path("vllm"), "0.12.0"))


def test_the_committed_run() -> None:
    """At least 10,000 batches, and whatever differs in a decision is told."""
    document = json.loads(RESULT.read_text())
    assert document["summary"]["version"] == "0.33.0"
    assert document["summary"]["batches"] >= 10_000
    assert {one["name"] for one in document["comparisons"]} >= {"threshold", "mha", "skip", "mask-bits", "convert"}
    told = (RESULT.parents[3] / "docs" / "findings.md").read_text()
    for finding in document["findings"]:
        assert f"`{finding['name']}`" in told


@pytest.mark.parametrize(
    ("file", "old", "new", "names"),
    [
        pytest.param(
            FILES["sparse"],
            "prefill_max_seq_len <= topk_tokens\n",
            "prefill_max_seq_len < topk_tokens\n",
            {"dense"},
            id="top-k",
        ),
        pytest.param(
            FILES["sparse"],
            " reorder_batch_threshold = 1\n",
            " reorder_batch_threshold = 2\n",
            {"threshold"},
            id="hisparse",
        ),
        pytest.param(
            FILES["split"],
            "is_prefill = query_lens > decode_threshold",
            "is_prefill = query_lens >= decode_threshold",
            {"split"},
            id="split",
        ),
        pytest.param(
            FILES["split"],
            "is_prefill = query_lens > decode_threshold",
            "is_prefill = (query_lens > decode_threshold) | (query_lens == 0)",
            {"split"},
            id="padding",
        ),
        pytest.param(
            FILES["split"],
            "is_prefill |= common_attn_metadata.is_prefilling",
            "is_prefill |= query_lens > 1",
            {"split"},
            id="drafts-as-prompts",
        ),
        pytest.param(
            FILES["mla"], "is_continuation=starts[0] > 0", "is_continuation=False", {"chunks"}, id="continuation"
        ),
        pytest.param(
            FILES["sparse"],
            "    max_key_len = max(max_query_len, max_context_chunk_seq_len)",
            "    max_key_len = {}[max_query_len]",
            {"answers"},
            id="raises",
        ),
    ],
)
def test_an_engine_that_was_changed_is_seen(
    vllm: Engine, tmp_path: Path, file: str, old: str, new: str, names: set[str]
) -> None:
    folder = tmp_path / "vllm"
    shutil.copytree(vllm.root, folder, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    text = (vllm.root / file).read_text()
    assert old in text
    (folder / file).unlink()
    (folder / file).write_text(text.replace(old, new))
    rules = load_rules(rules_for(vllm))
    changed = VllmRules(Sources(replace(vllm, root=folder)))
    assert names <= differ(compare_rules(changed, rules, questions(rules, 1200, 3)))
