"""SGLang's own routing decisions beside rules as data, where its sources are: installed, or in a folder named."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.engines.agreement import findings
from attnoracle.oracle.engines.sglang import compare_decisions, load_one_shot, rules_for
from attnoracle.oracle.engines.sglang_rules import CHUNK_CAPACITY, SglangRules
from attnoracle.oracle.engines.source import Engine, Sources, locate
from attnoracle.oracle.errors import BadInput, OracleError, Unsupported
from attnoracle.reference.routing.one_shot import (
    OneShotStep,
    default_kernels,
    dense_one_shot,
    prefill_kernel,
    selection_space,
    skips_scores,
)

#: A folder with SGLang's Python sources, such as an unpacked wheel; they are enough.
FOLDER = "ATTNORACLE_SGLANG_SOURCE"
RESULT = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "sglang-0.5.23" / "engine.json"
RULES = load_one_shot("sglang-0.5.23")
PLAIN = OneShotStep(
    mode="EXTEND",
    seq_lens=(2048, 12),
    queries=2060,
    capability=100,
    cache="e4m3",
    index_topk=2048,
    dense_limit=2048,
    prefill_kernel="flashmla_auto",
)


@pytest.fixture(scope="module")
def sglang() -> SglangRules:
    try:
        return SglangRules(Sources(locate("sglang", os.environ.get(FOLDER))))
    except OracleError as error:
        pytest.skip(f"{error}; or set {FOLDER}")


@pytest.mark.parametrize(
    ("change", "dense", "kernel", "space", "skip"),
    [
        pytest.param({}, True, "flashmla_auto", "PAGED", True, id="short"),
        pytest.param({"seq_lens": (2049, 12)}, False, "flashmla_sparse", "RAGGED", False, id="one-longer"),
        pytest.param({"seq_lens": (2049,), "queries": 4}, False, "flashmla_kv", "PAGED", False, id="few-queries"),
        pytest.param({"seq_lens": (2049,), "capability": 90}, False, "flashmla_kv", "PAGED", False, id="hopper"),
        pytest.param({"seq_lens": (2049,), "cache": "model"}, False, "flashmla_sparse", "PAGED", False, id="bf16"),
        pytest.param({"mode": "DECODE"}, False, "flashmla_kv", "PAGED", False, id="decode"),
        pytest.param({"mode": "DECODE", "captured": "dense"}, False, "flashmla_kv", "PAGED", True, id="short-graph"),
        pytest.param({"mode": "DECODE", "captured": "whole"}, False, "flashmla_kv", "PAGED", False, id="whole-graph"),
        pytest.param({"mode": "TARGET_VERIFY"}, False, "flashmla_kv", "PAGED", False, id="verify"),
        pytest.param({"in_graph": True}, False, "flashmla_sparse", "RAGGED", True, id="graph-in-pieces"),
        pytest.param({"seq_lens": (2048,) * 65, "queries": 9}, False, "flashmla_kv", "PAGED", True, id="many-short"),
        pytest.param({"capability": 80}, False, "flashmla_kv", "PAGED", True, id="ampere"),
        pytest.param({"dcp": 2}, False, "flashmla_sparse", "RAGGED", True, id="dcp"),
        pytest.param(
            {"seq_lens": (3000,), "dense_limit": 4096}, True, "flashmla_auto", "PAGED", False, id="limit-above-topk"
        ),
    ],
)
def test_points(change: dict[str, Any], dense: bool, kernel: str, space: str, skip: bool) -> None:
    step = replace(PLAIN, **change)
    found = dense_one_shot(RULES, step)
    assert (found.value, bool(found.reasons)) == (dense, True)
    assert prefill_kernel(RULES, step).value == kernel
    assert selection_space(RULES, step).value == space
    assert skips_scores(RULES, step).value == skip


def test_default_kernels() -> None:
    assert default_kernels(RULES, 90, "e4m3").value == ("flashmla_kv", "flashmla_kv")
    assert default_kernels(RULES, 90, "model").value == ("flashmla_sparse", "fa3")
    assert default_kernels(RULES, 100, "e4m3").value == ("trtllm", "trtllm")
    assert RULES.chunk_capacity == CHUNK_CAPACITY


def test_decisions_agree(sglang: SglangRules) -> None:
    found = compare_decisions(sglang, RULES, 300, 1)
    assert [one["name"] for one in findings(found) if one["level"] == "error"] == []
    assert min(one.cases for one in found) > 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"devices": ((90, 90),)}, "dense"),
        ({"extend_modes": ("EXTEND",)}, "skip"),
        ({"chunk_capacity": 65536}, "dense"),
        ({"keys_per_query": 511}, "kernel"),
        ({"ragged_kernels": ("flashmla_sparse",)}, "space"),
        ({"kernels": {**RULES.kernels, "model": {"below": ("fa3", "fa3"), "from_10": ("fa3", "fa3")}}}, "defaults"),
    ],
)
def test_a_rule_that_is_wrong_is_seen(sglang: SglangRules, change: dict[str, Any], name: str) -> None:
    found = compare_decisions(sglang, replace(RULES, **change), 800, 2)
    assert name in {one.name for one in found if one.disagreements}


def test_without_the_engine_it_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["engine", "sglang", "--source", str(tmp_path)]) == 2
    assert "expected a folder sglang/ with its Python sources" in capsys.readouterr().err
    with pytest.raises(Unsupported, match=r"there are rules for 0\.5\.23"):
        rules_for(Engine("sglang", Path("sglang"), "0.4.0"))
    with pytest.raises(BadInput, match=r"nearest: sglang-0\.5\.23"):
        load_one_shot("sglang-0.5")


def test_the_committed_run() -> None:
    """At least 10,000 steps, and whatever differs is told."""
    document = json.loads(RESULT.read_text())
    assert document["summary"]["version"] == "0.5.23"
    assert document["summary"]["batches"] >= 10_000 and document["summary"]["errors"] == 0
    assert {one["name"] for one in document["comparisons"]} >= {"dense", "kernel", "space", "skip", "defaults"}
    told = (RESULT.parents[3] / "docs" / "findings.md").read_text()
    assert all(f"`{finding['name']}`" in told for finding in document["findings"])
