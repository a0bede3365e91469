"""The benchmark tool: what it times, what it refuses, and what it writes."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest
import torch

from attnoracle.benchmarks.bench import plan
from attnoracle.benchmarks.bench.measure import Result, measure, require_memory
from attnoracle.benchmarks.bench.ratios import ratios
from attnoracle.benchmarks.bench.report import as_csv, figures
from attnoracle.benchmarks.bench.timing import Timing, interleaved
from attnoracle.benchmarks.bench.work import work
from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.config import load
from attnoracle.oracle.errors import BadInput, Unsupported
from attnoracle.oracle.inputs import make
from attnoracle.reference import dense_mha

SMALL = Case.parse("dense_mha:glm-5:h2:q20,5:k40,5:bf16:randn:contiguous:-:s0")


def implementation(name, factor=1.0):
    def run(q, k, v, cu_q, cu_k, *, scale, causal=True):
        out, lse = dense_mha(q.double(), k.double(), v.double(), cu_q, cu_k, scale=scale * factor, causal=causal)
        return out.to(q.dtype), lse.float()

    return Implementation(name, Contract(probabilities="fp64"), lambda facts: None, lambda: run)


def test_what_fails_its_check_is_not_timed():
    found = measure(
        SMALL, [implementation("dense_mha/good"), implementation("dense_mha/wrong", 1.01)], "cpu", seconds=0.0
    )
    assert [(one.implementation, one.status) for one in found] == [
        ("dense_mha/good", "timed"),
        ("dense_mha/wrong", "refused"),
    ]
    assert found[0].timing is not None and found[0].timing.calls >= 3 and found[0].flops > 0
    assert found[1].timing is None and found[1].reason.startswith("FAIL: ")


def test_work_counts_pairs_that_a_query_may_see():
    inputs = make(SMALL, load("glm-5")).kwargs()
    pairs = sum(min(40, 20 + i + 1) for i in range(20)) + sum(range(1, 6))
    assert work(SMALL, inputs).flops == 2 * 2 * pairs * (256 + 256)


def test_work_of_sparse_mqa_counts_valid_slots():
    case = Case.parse("sparse_mqa:glm-5:h4:q6:k300:top64:bf16:randn:contiguous:leading:s0")
    inputs = make(case, load("glm-5")).kwargs()
    valid = int((inputs["indices"] >= 0).sum())
    assert 0 < valid < 6 * 64 and work(case, inputs).flops == 2 * 4 * valid * (576 + 512)


def test_functions_take_turns_and_the_slow_one_is_seen():
    order = []

    def timed(name, seconds):
        def run():
            order.append(name)
            time.sleep(seconds)

        return run

    fast, slow = interleaved([timed("fast", 0.0), timed("slow", 0.01)], torch.device("cpu"), seconds=0.0, least=4)
    assert slow.median > 0.009 > fast.median and slow.calls == fast.calls == 4
    assert order[-8:] == ["fast", "slow", "slow", "fast"] * 2


def test_a_ratio_is_of_the_fastest_of_ours_to_each_peer():
    def result(name, seconds):
        return Result(SMALL, f"dense_mha/{name}", "timed", timing=Timing(seconds, seconds, seconds, 3))

    found = ratios([result("triton", 3.0), result("hopper", 2.0), result("sdpa-cudnn", 1.0), result("eager", 8.0)])
    assert [(one.ours, one.peer, one.ratio) for one in found] == [
        ("dense_mha/hopper", "dense_mha/sdpa-cudnn", 0.5),
        ("dense_mha/hopper", "dense_mha/eager", 4.0),
    ]


def test_a_sweep_is_every_combination():
    found = plan.swept(plan.Setting(geometry="glm-5"), ["heads=64,32", "pattern=prefix,window"])
    assert [(one.heads, one.pattern) for one in found] == [
        (64, "prefix"), (64, "window"), (32, "prefix"), (32, "window"),
    ]  # fmt: skip
    assert found[0].case().id == "sparse_mqa:glm-5:h64:q1024:k1024:top2048:bf16:randn:contiguous:prefix:s0"


@pytest.mark.parametrize("text", ["heads", "heads=", "haeds=1", "heads=x", "heads=-1"])
def test_a_sweep_that_cannot_be(text):
    with pytest.raises(BadInput, match="heads"):
        plan.swept(plan.Setting(), [text])


def test_shipped_grids_are_cases():
    assert set(plan.shipped()) >= {
        "peers-attention",
        "peers-sparse",
        "peers-select",
        "short-prefill",
        "masked-glm",
        "smoke",
    }
    for name in plan.shipped():
        assert all(setting.case().id for setting in plan.grids(name))


def test_a_shape_that_does_not_fit_says_what_it_needs():
    case = Case.parse("sparse_mqa:glm-5:h64:q200000000:k400000000:top2048:bf16:randn:contiguous:-:s0")
    with pytest.raises(Unsupported, match=r"needs about [\d.]+ GiB .* this device has [\d.]+ GiB"):
        require_memory(case, "cpu")


def test_the_command_writes_what_it_measured(tmp_path, capsys):
    target = tmp_path / "bench.json"
    words = ["bench", "q8s64", "--operator", "topk_select", "--geometry", "glm-5", "--topk", "16", "--device", "cpu"]
    code = main([*words, "-i", "*/torch", "-i", "*/sort", "--seconds", "0", "--json", str(target), "--csv", "-"])
    assert code == 0
    document = json.loads(target.read_text())
    assert document["schema"]["name"] == "attnoracle.bench" and document["summary"]["timed"] == 2
    assert {row["implementation"] for row in document["results"]} == {"topk_select/torch", "topk_select/sort"}
    assert all(row["seconds"]["median"] > 0 and row["bytes_per_second"] > 0 for row in document["results"])
    assert document["summary"]["ceilings"]["copy_bytes"] > 0 and document["ratios"] == []
    out = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(out.out)))) == 2
    assert "CPU figures" in out.err and max(map(len, out.err.splitlines())) <= 100


def test_nothing_asked_for(capsys):
    assert main(["bench"]) == 2
    assert "peers-sparse" in capsys.readouterr().err


def test_csv_has_a_line_for_what_was_refused():
    row = next(csv.DictReader(io.StringIO(as_csv([Result(SMALL, "dense_mha/x", "refused", "FAIL: a,b")]))))
    assert (row["status"], row["median_ms"], row["reason"]) == ("refused", "", "FAIL: a,b")


@pytest.mark.parametrize(("value", "told"), [(0.5116, "0.512"), (65.49, "65.5"), (999.4, "999"), (1151.2, "1,151")])
def test_rates_are_told_in_three_figures_without_an_exponent(value, told):
    assert figures(value) == told
