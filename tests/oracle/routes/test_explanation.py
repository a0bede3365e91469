"""The decision chain of a batch, and the command that prints it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from attnoracle.oracle.routes.explain import explain
from attnoracle.oracle.routes.grammar import parse_batch
from attnoracle.oracle.routes.setup import backend_priority, rules_named


def test_order_of_the_chain(deploy) -> None:
    found = explain(rules_named("vllm-0.33"), deploy(), parse_batch("8q1s2k_2q512"))
    assert [step.name for step in found.steps] == ["split", "index", "ready", "route", "attend"]
    assert (found.decode_tokens, found.prefill_tokens) == (8, 1024)
    assert all(step.reasons for step in found.steps)


@pytest.mark.parametrize(
    ("version", "route", "runs", "skip", "hazards"),
    [
        ("vllm-50906", "dense_mha", "sparse_mqa", False, 0),
        ("vllm-51298", "dense_mha", "sparse_mqa", True, 1),
        ("vllm-52512", "sparse_mqa", "sparse_mqa", False, 0),
        ("vllm-53785", "dense_mha", "dense_mha", True, 0),
    ],
)
def test_the_incident_is_a_hazard(deploy, version: str, route: str, runs: str, skip: bool, hazards: int) -> None:
    found = explain(rules_named(version), deploy(version), parse_batch("q512"))
    assert (found.route, found.runs, found.skip, len(found.hazards)) == (route, runs, skip, hazards)


def test_generic_layers_run_what_was_decided(deploy) -> None:
    found = explain(rules_named("vllm-51298"), deploy("vllm-51298", wrapper="generic"), parse_batch("q512"))
    assert (found.runs, found.hazards) == ("dense_mha", ())


def test_an_overrun_mask_is_a_hazard(deploy) -> None:
    rules = rules_named("vllm-48770")
    one = deploy("vllm-48770", geometry="deepseek-v3.2", tensor_parallel=8, cache="model", wrapper="generic")
    assert explain(rules, one, parse_batch("q23040")).hazards == ()
    assert "overruns" in explain(rules, one, parse_batch("q23041")).hazards[0]


def test_a_graph_makes_the_query_ready(deploy) -> None:
    rules, batch = rules_named("vllm-0.33"), parse_batch("q512")
    eager, full = (explain(rules, deploy(), batch, mode=mode) for mode in ("NONE", "FULL"))
    assert (eager.steps[2].answer, full.steps[2].answer) == ("no MQA query", "MQA query made")
    assert (eager.skip, full.skip) == (True, False)


def test_a_shared_layer_follows_its_full_one(deploy) -> None:
    rules, batch = rules_named("vllm-0.33"), parse_batch("q512")
    shared, draft = (explain(rules, deploy(), batch, kind=kind) for kind in ("shared", "mtp"))
    assert shared.skip and "full layer before" in shared.steps[1].reasons[-1]
    assert not draft.skip and draft.steps[1].reasons == ("MTP layer",)


def test_backends_in_priority() -> None:
    assert backend_priority(100, quantized=True, local_heads=16)[0] == "FLASHINFER_MLA_SPARSE"
    assert backend_priority(100, quantized=False, local_heads=16)[0] == "FLASH_ATTN_MLA_SPARSE_FA4"
    assert backend_priority(100, quantized=False, local_heads=32)[0] == "FLASHMLA_SPARSE"
    assert backend_priority(90, quantized=True, local_heads=8) == ("FLASHMLA_SPARSE",)


def test_tree_at_80_columns(route) -> None:
    code, out, err = route("8q1s2k_2q512s4k", "--backend", "FLASHMLA_SPARSE")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    heads = [line[4:] for line in out.splitlines() if line.startswith(("├── ", "└── "))]
    assert [head.partition(":")[0] for head in heads] == ["split", "index", "ready", "route", "attend"]
    assert "query 512 < 4096" in out


def test_json(route) -> None:
    code, out, err = route("--q", "512", "--rules", "vllm-51298", "--cache", "e4m3", "--json", "-")
    read = json.loads(out)
    assert code == 1 and "hazard: the indexer skips" in err
    assert read["schema"] == {"name": "attnoracle.route", "version": 1}
    assert read["summary"] == {"route": "dense_mha", "runs": "sparse_mqa", "skip": True, "hazards": 1}
    (record,) = read["routes"]
    assert record["requests"] == [{"q": 512, "context": 0}]
    assert [step["name"] for step in record["steps"]] == ["split", "index", "ready", "route", "attend"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["q9", "--geometry", "glm5"], "unknown geometry 'glm5'; nearest: glm-5"),
        (["q9", "--rules", "vllm-52513"], "unknown rule version 'vllm-52513'; nearest: vllm-52512"),
        (["q9", "--backend", "FLASHMLA"], "unknown backend of vllm-0.33 on SM100 'FLASHMLA'; nearest: FLASHMLA_SPARSE"),
        (["q9", "--provider", "flash-atention"], "nearest: flash-attention"),
        (["q9", "--sm", "120"], "--sm 120: expected a device family of rules vllm-0.33: 90, 100"),
        (["q9", "--tp", "3"], "--tp 3: expected a divisor of the 64 heads"),
        (["q9", "--geometry", "glm-5.3-flash"], "expected an indexer with index_topk"),
        (["q5s3"], "field s: expected at least q = 5"),
        ([], "expected a batch such as"),
        (["q9", "--q", "5"], "expected a batch or --q and --context"),
        (["q9", "--sweep"], "got --sweep and a batch"),
        (["--sweep", "--audit"], "got --sweep and --audit"),
        (["q9", "--png", "x.png"], "--png: expected --sweep beside it"),
        (["--diff", "vllm-51298", "vllm-52512", "--rules", "vllm-0.33"], "expected none beside --diff"),
        (["--diff", "vllm-51298", "vllm-52513"], "nearest: vllm-52512"),
        (["q9", "--rules", "/no/such.toml"], "/no/such.toml: cannot be read: No such file"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_refused(route, arguments: list[str], words: str) -> None:
    code, out, err = route(*arguments)
    assert (code, out) == (2, "")
    assert words in err and "Traceback" not in err


def test_every_switch_reaches_the_decision(route) -> None:
    def chosen(*arguments: str) -> str:
        return json.loads(route(*arguments, "--json", "-")[1])["summary"]["route"]

    assert chosen("q4k") == "masked_mha"
    assert chosen("q4k", "--cache", "e4m3") == "sparse_mqa"
    assert chosen("q4k", "--force-mqa") == "sparse_mqa"
    assert chosen("q4k", "--dcp", "2") == "sparse_mqa"
    assert chosen("q4k", "--workspace-mib", "1") == "sparse_mqa"
    assert chosen("q4k", "--speculative", "5000") == "none"
    assert chosen("q300", "--pcp", "2", "--dcp", "2") == "sparse_mqa"
    ours = ("--rules", "attnoracle", "--provider", "attnoracle-triton", "--cache", "e4m3", "--backend")
    assert chosen("q4k", *ours, "FLASHMLA_SPARSE") == "masked_mha"


def test_explanation_is_of_the_arranged_batch(deploy) -> None:
    found = explain(
        rules_named("vllm-0.33"), replace(deploy(), backend="FLASHINFER_MLA_SPARSE"), parse_batch("q300_q1s9")
    )
    assert [request.query_len for request in found.batch.requests] == [1, 300]
