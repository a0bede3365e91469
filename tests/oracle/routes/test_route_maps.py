"""Maps of routes, and comparisons of rule versions."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnoracle.oracle.reports.route_report import column_heads
from attnoracle.oracle.routes.behaviour import behave
from attnoracle.oracle.routes.boundaries import boundaries, pure_limit
from attnoracle.oracle.routes.closed import closed_routes
from attnoracle.oracle.routes.diff import Change, compare
from attnoracle.oracle.routes.setup import rules_named
from attnoracle.oracle.routes.sweep import sweep
from attnoracle.reference.routing import Batch

STEPS = (("vllm-50906", "vllm-51298"), ("vllm-51298", "vllm-52512"), ("vllm-52512", "vllm-53785"))


def fresh(changes: tuple[Change, ...], batch: str = "q") -> list[tuple[int, int]]:
    return [change.query for change in changes if change.batch == batch]


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_the_window_of_the_incident(deploy, before: str, after: str) -> None:
    found = compare(rules_named(before), rules_named(after), deploy(after)).changes
    assert fresh(found) == fresh(found, "4q") == [(129, 2048)]
    assert [(each.query, each.seq) for each in found if each.seq] == [((129, 2047), (130, 2048))]
    skips = [each for each in found if "skip" in each.kinds]
    assert len(skips) == 3 and all(each.query[0] == 129 for each in skips)


def test_hazard_came_and_went(deploy) -> None:
    found = [compare(rules_named(old), rules_named(new), deploy(new)).changes for old, new in STEPS]
    told = [(each[0].before.hazard, each[0].after.hazard) for each in found]
    assert told == [(False, True), (True, False), (False, False)]


def test_capability_is_a_setting(deploy) -> None:
    found = compare(rules_named("vllm-51298"), rules_named("vllm-52512"), deploy("vllm-52512"))
    assert [name for name, *_ in found.settings] == ["capability", "dense prefill backend"]


def test_a_version_against_itself(deploy) -> None:
    found = compare(rules_named("vllm-0.33"), rules_named("vllm-0.33"), deploy(cache="model"))
    assert found.settings == found.changes == ()


@pytest.mark.parametrize("cache", ["e4m3", "model"])
@pytest.mark.parametrize(("before", "after"), [*STEPS, ("vllm-50906", "vllm-0.33")])
def test_ranges_say_what_each_batch_does(deploy, before: str, after: str, cache: str) -> None:
    """Random single requests differ exactly where a range says so, and as it says."""
    old, new, deployment = rules_named(before), rules_named(after), deploy(after, cache=cache)
    changes = [each for each in compare(old, new, deployment).changes if each.batch in ("q", "q..s..")]
    draw = random.Random(7)
    for _ in range(1500):
        top = draw.choice((200, 2100, 5000, 40000, 131072))
        query = draw.randint(1, top)
        context = draw.choice((0, draw.randint(1, top)))
        if query + context > deployment.max_model_len:
            continue
        seq = query + context
        told = [
            (each.before, each.after)
            for each in changes
            if each.query[0] <= query <= each.query[1]
            and ((each.seq is None) == (context == 0))
            and (each.seq is None or each.seq[0] <= seq <= each.seq[1])
        ]
        batch = Batch.of([(query, context)])
        pair = behave(old, deployment, batch), behave(new, deployment, batch)
        assert told == ([pair] if pair[0] != pair[1] else []), (query, context)


def test_ranges_that_hold_for_their_first_query_only_say_so(deploy) -> None:
    """8 MiB: a chunk of context fills the mask workspace before the query does."""
    before, after = rules_named("vllm-52512"), rules_named("vllm-0.33")
    deployment = deploy(cache="model", tensor_parallel=8, backend="FLASHINFER_MLA_SPARSE")
    assert all(change.exact for change in compare(before, after, deployment).changes)
    assert after.mask_workspace is not None
    small = replace(after, mask_workspace=replace(after.mask_workspace, max_bytes=8 << 20))
    assert [change.query[0] for change in compare(before, small, deployment).changes if not change.exact] == [4096]


def test_boundaries_are_where_fresh_prompts_change(deploy) -> None:
    rules, deployment = rules_named("vllm-0.33"), deploy(cache="model")
    letters = "".join(behave(rules, deployment, Batch.of([(each, 0)])).letter for each in range(1, 4097))
    turns = [each for each in range(1, 4096) if letters[each - 1] != letters[each]]
    assert turns == [128, 2048]
    assert set(turns) <= set(boundaries(rules, deployment).probes(4097))


def test_pure_limits() -> None:
    rules = rules_named("vllm-0.33")
    assert [pure_limit(rules, each) for each in (1, 4, 16, 64)] == [32768, 16384, 8192, 4096]
    assert pure_limit(rules_named("vllm-48770"), 1) is None
    assert pure_limit(rules_named("vllm-47327"), 1) == 0


def test_map(deploy) -> None:
    found = sweep(rules_named("vllm-0.33"), deploy(cache="model"))
    assert {128, 129, 2048, 2049, 32768, 32769} <= set(found.queries)
    assert {2048, 2049, 34816, 34817} <= set(found.sequences[1:])
    cells = {
        (query, seq): letter
        for seq, row in zip(found.sequences, found.rows, strict=True)
        for query, letter in zip(found.queries, row, strict=True)
    }
    assert [cells[each, None] for each in (128, 129, 2048, 2049, 32768, 32769)] == list(".DDMMQ")
    assert (cells[32768, 34816], cells[32768, 34817], cells[2048, 2048]) == ("M", "Q", " ")
    assert found.used == (".", "D", "M", "Q")


def test_heads_of_columns_lie_across_and_end_over_their_columns(route) -> None:
    assert column_heads(["1", "128", "129", "32769"], 3) == ("  1   129", "   128 32769")
    _, out, _ = route("--sweep")
    lines = out.splitlines()
    upper, lower, fresh = lines[3:6]
    assert lower.startswith("  query ") and fresh.startswith("  fresh ")
    assert {"1", "128", "129", "2K", "2049", "32K", "32769", "128K"} <= {*upper.split(), *lower.split()}
    letters = {
        head[match.start() : match.end()]: fresh[match.end() - 1]
        for head in (upper, lower.replace("query", "     "))
        for match in re.finditer(r"\S+", head)
    }
    assert [letters[each] for each in ("128", "129", "2K", "2049", "32K", "32769")] == list(".DDMMQ")
    assert max(map(len, lines)) <= 80


def test_map_shows_hazards(route) -> None:
    code, out, _ = route("--sweep", "--rules", "vllm-51298", "--cache", "e4m3")
    assert code == 1
    assert "! reads a selection that nobody wrote" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("width", [60, 80])
def test_map_gives_way_but_not_at_boundaries(deploy, width: int) -> None:
    rules, deployment = rules_named("vllm-0.33"), deploy(cache="model", tensor_parallel=8)
    narrow, wide = (sweep(rules, deployment, columns=columns) for columns in (4, width))
    assert set(narrow.queries) < set(wide.queries)
    assert {128, 129, 2048, 2049, 32768, 32769} <= set(narrow.queries)


def test_command_of_a_comparison(route) -> None:
    code, out, err = route(
        "--diff", "vllm-51298", "vllm-52512", "--cache", "e4m3", "--backend", "FLASHMLA_SPARSE", "--json", "-"
    )
    read = json.loads(out)
    assert code == 0 and read["summary"]["rules"] == ["vllm-51298", "vllm-52512"]
    assert read["routes"][0] == {
        "batch": "q",
        "query": [129, 2048],
        "seq": None,
        "exact": True,
        "changes": {"route": ["dense_mha", "sparse_mqa"], "skip": [True, False], "hazard": [True, False]},
    }
    assert "q 129..2048" in err and max(map(len, err.splitlines())) <= 80


def test_a_comparison_takes_a_backend_that_both_versions_know(route) -> None:
    arguments = ("--diff", "vllm-52512", "vllm-0.33", "--json", "-")
    code, _, err = route(*arguments)
    assert code == 0 and "FLASHINFER_MLA_SPARSE on SM100" in err
    assert "mask workspace\n  vllm-52512: 134217728 bytes, rows of a multiple of 1 words, guarded" in err
    code, _, err = route(*arguments, "--backend", "FLASH_ATTN_MLA_SPARSE_FA4")
    assert code == 2 and "unknown backend of vllm-52512 and vllm-0.33 on SM100" in err


def test_a_comparison_says_which_routes_are_closed_and_by_which_gate(route, deploy) -> None:
    arguments = ("--diff", "vllm-53785", "attnoracle", "--backend", "FLASHMLA_SPARSE", "--json", "-")
    code, out, err = route(*arguments, "--sm", "90")
    assert code == 0 and "masked MHA cannot run here: gate: SM90 is not among (100,)" in err
    assert "dense MHA cannot" not in err and "no batch behaves differently" in err
    (before, after) = json.loads(out)["summary"]["closed"]
    assert before == after and [(each["route"], each["gate"]) for each in before] == [("masked MHA", "gate")]
    assert "cannot run here" not in route(*arguments)[2]


@pytest.mark.parametrize(
    ("version", "changes", "told"),
    [
        ("vllm-47327", {}, [("dense MHA", "wrapper"), ("masked MHA", "wrapper")]),
        ("vllm-52512", {"wrapper": "generic"}, [("dense MHA", "prefill backend"), ("masked MHA", "prefill backend")]),
        ("vllm-0.33", {"force_mqa": True}, [("dense MHA", "force"), ("masked MHA", "force")]),
        ("vllm-0.33", {"dcp": 2, "pcp": 2}, [("dense MHA", "parallelism"), ("masked MHA", "parallelism")]),
        ("vllm-0.33", {"tensor_parallel": 16}, [("masked MHA", "policy")]),
        ("vllm-0.33", {}, []),
    ],
)
def test_a_closed_route_is_one_that_no_length_takes(deploy, version: str, changes: dict, told: list) -> None:
    rules, deployment = rules_named(version), deploy(version, **{"cache": "model"} | changes)
    assert [(each.route, each.gate) for each in closed_routes(rules, deployment)] == told
    run = {behave(rules, deployment, Batch.of([(each, 0)])).runs for each in (200, 2048, 4096, 16384)}
    for name in ("dense MHA", "masked MHA"):
        assert (name.lower().replace(" ", "_") in run) is (name not in dict(told))


def test_the_shortest_model(route) -> None:
    for question in (("--sweep",), ("--diff", "vllm-52512", "vllm-0.33")):
        assert route(*question, "--max-model-len", "2")[0] == 0


def test_png_without_matplotlib(route, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = route("--sweep", "--png", str(tmp_path / "map.png"))
    assert (code, out) == (2, "")
    assert "pip install 'attnoracle[plot]'" in err
    assert not list(tmp_path.iterdir())


def test_png(route, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'attnoracle[plot]'")
    code, *_ = route("--sweep", "--png", str(tmp_path / "map.png"))
    assert code == 0
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
