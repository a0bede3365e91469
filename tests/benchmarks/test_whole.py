"""Whole routes and decode steps: what is timed, what is said of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from attnoracle.benchmarks.bench import decode, whole
from attnoracle.benchmarks.bench.stages import ORDER, Prefill, Shape
from attnoracle.benchmarks.bench.timing import Timing
from attnoracle.benchmarks.bench.whole_report import print_decode
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.cli.terminal import console
from attnoracle.oracle.config import load
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.graphs.setup import setup
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.policies import load_rules


def test_whole_routes_of_a_short_prompt(tmp_path, capsys):
    target = tmp_path / "whole.json"
    words = ["bench", "whole", "q5", "q3s9", "--geometry", "tiny", "--tp", "2", "--seconds", "0", "--device", "cpu"]
    assert main([*words, "--json", str(target)]) == 0
    results = json.loads(target.read_text())["results"]
    short = {one["route"]: one for one in results if one["batch"] == "q5"}
    assert set(short) == {"dense_mha", "dense_mha, skipped", "masked_mha", "sparse_mqa"}
    assert {"scores", "top-k"} <= set(short["dense_mha"]["stages"]) - set(short["dense_mha, skipped"]["stages"])
    for one in short.values():
        assert list(one["stages"]) == [name for name in ORDER if name in one["stages"]]
        assert one["seconds"]["median"] > 0 and all(seconds > 0 for seconds in one["stages"].values())
    assert {"up-projection", "mask", "attention"} <= set(short["masked_mha"]["stages"])
    assert {"absorb", "attention", "restore"} <= set(short["sparse_mqa"]["stages"])
    said = capsys.readouterr().out
    assert "skipping the indexer saves" in said and "CPU figures" in said


def test_a_long_prompt_has_no_dense_route_and_a_large_mask_is_said():
    shape = Shape(load("tiny"), 4, 3, load("tiny").index_topk + 5, "cpu")
    found = {one.route: one for one in whole.measure("q3s", 1, shape, ("dense_mha",), seconds=0.0)}
    assert found["dense_mha"].total is None and "which dense MHA would all read" in found["dense_mha"].note
    assert "1024 MiB, enlarged here" in whole._refused("masked_mha", Shape(load("glm-5"), 8, 65536, 131072))
    assert whole._refused("masked_mha", Shape(load("glm-5"), 8, 32768, 32768)) == ""


def test_a_wrong_kernel_is_not_timed():
    def check(name, geometry, heads, device):
        raise BadInput(f"{name} does not pass")

    with pytest.raises(BadInput, match="dense_mha/sdpa-math does not pass"):
        whole.measure("q5", 1, Shape(load("tiny"), 2, 5, 5, "cpu"), ("dense_mha",), seconds=0.0, check=check)


def test_the_stages_compute_the_attention_that_they_are_timed_for():
    """Absorbed and raised forms agree where every key is selected: the stages are of one layer."""
    prefill = Prefill(Shape(load("tiny"), 2, 4, 4, "cpu"))
    absorbed, raised = prefill.route("sparse_mqa"), prefill.route("masked_mha")
    out = raised["attention"]()[0].double()
    other = absorbed["restore"]().double()
    assert float((out - other).norm() / out.norm()) < 0.02


def test_a_decode_step_with_and_without_the_skip(tmp_path, capsys):
    target = tmp_path / "decode.json"
    words = ["bench", "decode", "--geometry", "tiny", "--requests", "1", "--requests", "2", "--steps", "4"]
    assert main([*words, "--device", "cpu", "--json", str(target)]) == 0
    results = json.loads(target.read_text())["results"]
    assert [(one["requests"], one["steps"], one["with_skip"]["calls"]) for one in results] == [(1, 4, 4), (2, 4, 4)]
    assert all(one["same_operations"] and one["operations"] > 50 and one["host_without"] > 0 for one in results)
    said = capsys.readouterr().out
    assert "2 requests, 4 steps each: both layers captured the same" in said
    assert max(map(len, said.splitlines())) <= 80


class Stuck(decode.Decoder):
    """Its graph forgets to move on: every replay is the same step."""

    def one_token(self):
        return self.layers[0].forward(self.drawn, self.metadata)[0]


def tiny_decoder(make=decode.Decoder, **change):
    rules = replace(load_rules(decode.RULES), **change)
    operators = setup("fused", "cpu").operators()
    sizes = {"heads": 2, "requests": 2, "context": 60, "longest": 128}
    return decode.decoder(rules, model=load("tiny"), device="cpu", operators=operators, make=make, **sizes)


def test_a_replay_is_a_step_of_the_layer():
    """Replayed over a page's end, the graph gives what the layer gives on metadata that the host builds anew."""
    replayed, eager = tiny_decoder(), tiny_decoder()
    for step in range(1, 7):
        replayed.graph.launch()
        told = replace(eager.built(60 + step - 1), mode="NONE", capturing=False)
        wanted, _ = eager.layers[0].forward(eager.drawn, told)
        assert replayed.behind(step) == []
        torch.testing.assert_close(replayed.graph.outputs, wanted)
    assert replayed.behind(5) == ["positions", "slots", "seq_lens"]


def test_a_graph_that_stands_still_is_not_timed():
    with pytest.raises(RuntimeError, match=r"not where the host is: .*positions"):
        decode.timed([tiny_decoder(Stuck)], 4, "cpu")


def test_graphs_that_differ_are_said(capsys):
    """A layer whose graph skips would be faster and wrong; the comparison of operations sees it."""

    class Skipping(decode.Decoder):
        def one_token(self):
            self.layers[0].index = lambda inputs, metadata, trace: None
            return super().one_token()

    assert decode.operations(tiny_decoder()) == decode.operations(tiny_decoder(indexer_skip=False))
    assert decode.operations(tiny_decoder(Skipping)) != decode.operations(tiny_decoder())
    one = Timing.of([2.0, 2.0, 2.0])
    print_decode(console(), "tiny", 2, [decode.Decoding(1, 3, one, one, same_operations=False)], "a GPU")
    assert "different operations" in capsys.readouterr().out


def test_a_wrong_kernel_does_not_decode():
    case = decode.case("topk_select", load("tiny"), 2, 1, 40)
    right = find("topk_select/sort")

    def first(scores, ks, ke, *, k):
        return (right.load()(-scores, ks, ke, k=k)[0],)

    decode.verify(case, right, "cpu")
    with pytest.raises(BadInput, match="does not pass topk_select:tiny"):
        decode.verify(case, replace(right, load=lambda: first), "cpu")


def test_a_slower_layer_shows():
    """The ratio is of the two layers, in this order."""
    found = decode.Decoding(1, 3, Timing.of([3.0, 3.0, 3.0]), Timing.of([2.0, 2.0, 2.0]))
    assert found.ratio == 1.5 and found.as_dict()["ratio"] == 1.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["whole"], "expected batches"),
        (["whole", "2q4"], "one request"),
        (["whole", "q4", "--tp", "3"], "no multiple"),
        (["whole", "q4", "--route", "densemha"], "dense_mha"),
        (["q4k", "--route", "dense_mha"], "expected the word whole"),
        (["q4k", "--tp", "2"], "crossover or whole or decode"),
        (["crossover", "--requests", "2"], "expected the word decode"),
    ],
)
def test_what_cannot_be(words, said, capsys):
    assert main(["bench", *words, "--geometry", "tiny", "--device", "cpu"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
