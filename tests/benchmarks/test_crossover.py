"""From speeds to a routing table: the search, what noise may decide, and what a borrowed table costs."""

from __future__ import annotations

import pytest

from attnoracle.benchmarks.bench import borrowed, crossover
from attnoracle.benchmarks.bench.crossover_report import draw, print_crossover
from attnoracle.benchmarks.bench.timing import Timing
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.cli.terminal import console
from attnoracle.oracle.config import load
from attnoracle.oracle.policies import read_rules


def point(query, seq, mha=1.0, mqa=2.0):
    def near(median):
        return Timing(median, 0.95 * median, 1.05 * median, 5)

    return crossover.Point(query, seq, near(mha), near(mqa), "sparse_mqa/hopper")


@pytest.mark.parametrize("last", [0, 2048, 3072, 9216, 20480, 65536])
def test_bisection_finds_the_last_length_that_wins(last):
    asked = []

    def outcome(length):
        asked.append(length)
        return "MHA" if length <= last else "MQA"

    assert crossover.largest(outcome, 2048, 65536) == (last, 2048 if last else 0)
    assert len(asked) == len(set(asked)) <= 12


def test_noise_at_short_lengths_does_not_end_the_search():
    def outcome(length):
        return "noise" if length < 7000 else "MHA" if length <= 30 * 1024 else "MQA"

    assert crossover.largest(outcome, 3072, 65536) == (30 * 1024, 12288)
    assert crossover.largest(lambda length: "noise", 3072, 65536) == (0, 0)


def test_the_search_ends_where_mqa_wins():
    asked = []

    def outcome(length):
        asked.append(length)
        return "MQA" if length > 3072 else "noise"

    assert crossover.largest(outcome, 3072, 65536) == (0, 0) and max(asked) == 6144


@pytest.mark.parametrize(("first", "least"), [(3072, 0), (12288, 12288)])
def test_a_crossover_becomes_a_policy_that_loads(tmp_path, first, least):
    assert crossover.intervals([(8192, 12288), (4096, 6144), (16384, 12288), (32768, 0)]) == (
        (6144, 4096),
        (12288, 8192),
    )
    points = (point(3072, 3072, 1.0, 1.0), point(24576, 24576))
    rows = [crossover.Row(2, 32, 24576, first, ((6144, 4096), (12288, 8192)), points)]
    path = tmp_path / "measured.toml"
    path.write_text(crossover.policy(load("glm-5"), rows, device="NVIDIA H200", date="2026-11-29"))
    rules = read_rules(path)
    table = rules.tables[256, 256, "FLASHMLA_SPARSE", 2]
    assert [tuple(each) for each in table.pure] == [(24576, least)]
    assert main(["route", "--audit", "--rules", str(path)]) == 0


def test_noise_decides_for_mqa():
    near = crossover.Point(1, 1, Timing(1.0, 0.9, 1.1, 5), Timing(1.15, 1.05, 1.3, 5), "x")
    assert near.outcome == "noise" and near.as_dict()["ratio"] == pytest.approx(1.15)
    assert point(1, 1, 2.0, 1.0).outcome == "MQA" and point(1, 1, 1.0, 2.0).outcome == "MHA"


def test_a_borrowed_table_costs_where_it_takes_the_slower_route():
    """vLLM's table for GLM at TP 4 takes masked MHA up to 48K fresh tokens, and 16K with 8,192 new ones."""
    geometry = load("glm-5")
    assert (49152, 49152) in borrowed.limits(geometry, 4) and (8192, 16384) in borrowed.limits(geometry, 4)
    points = [point(8192, 8192), point(32768, 32768, 1.5, 1.0), point(8192, 20480), point(8192, 16384, 1.0, 1.02)]
    found = borrowed.costs(geometry, 4, points)
    assert [(one.query, one.seq, one.borrowed, one.slower) for one in found] == [
        (32768, 32768, "MHA", 0.5),
        (8192, 20480, "MQA", 1.0),
    ]
    assert borrowed.limits(load("tiny"), 4) == []


def test_people_read_the_crossovers_and_see_them(tmp_path, capsys):
    points = (point(3072, 3072, 1.0, 1.01), point(12288, 12288), point(65536, 65536, 2.0, 1.0), point(4096, 8192))
    rows = [crossover.Row(8, 8, 12288, 12288, ((8192, 4096),), points)]
    print_crossover(console(), load("glm-5.2"), rows)
    said = capsys.readouterr().out
    assert "up to 12k from 12k on; with context 4k new up to 8k" in said.replace("\n", " ")
    assert "too close to call" in said and "takes MHA at 64k: 100% longer" in said and "B200 (vllm#53785)" in said
    assert max(map(len, said.splitlines())) <= 100
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plot'")
    draw(load("glm-5.2"), rows, "NVIDIA H200", tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_no_gpu_no_policy(capsys):
    assert main(["bench", "crossover", "--geometry", "glm-5", "--device", "cpu"]) == 2
    assert "CPU figures make no policy" in capsys.readouterr().err
