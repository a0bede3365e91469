"""What an audit of the shipped tables finds, exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from attnoracle.oracle.policies import load_rules, rule_versions
from attnoracle.oracle.routes.audit import TableAudit, audit_rules, merge
from attnoracle.oracle.routes.intervals import entries
from attnoracle.reference.routing import workspace_guard

INFER8, MLA = "FLASHINFER_MLA_SPARSE TP8", "FLASHMLA_SPARSE"
HEAD = 'name = "x"\ndate = "2026-01-01"\nsource = "a test"\nbased_on = "vllm-0.33"\n'
TABLE = '[[tables]]\nhead_dims = [256, 256]\nbackend = "B"\ntensor_parallel = 1\n'


@pytest.fixture(scope="module")
def audited() -> TableAudit:
    return audit_rules(load_rules("vllm-0.33"), (1, 2, 4, 8))


def rows(audit: TableAudit, kind: str, prefills: int | None = 1) -> dict[str, tuple[int, int] | None]:
    return {each.row: each.lengths for each in audit.findings if (each.kind, each.prefills) == (kind, prefills)}


def test_wholly_dead(audited: TableAudit) -> None:
    assert rows(audited, "dead-row") == {
        f"256/256 {INFER8} context 56K:40K": (40960, 57343),
        f"256/256 {INFER8} context 64K:48K": (49152, 65535),
        f"256/256 {INFER8} context 72K:56K": (57344, 73727),
    }


def test_alive_at_one_query_length(audited: TableAudit) -> None:
    assert rows(audited, "single-point") == {
        f"256/256 {MLA} TP4 context 34K:32K": (32768, 32768),
        f"256/256 {MLA} TP8 context 48K:32K": (32768, 32768),
        f"256/256 {INFER8} context 48K:32K": (32768, 32768),
        f"192/128 {INFER8} any 32K:32K": (32768, 32768),
        f"192/128 {MLA} TP1 any 4K:4K": (4096, 4096),
    }


def test_dead_above_the_guard(audited: TableAudit) -> None:
    assert rows(audited, "dead-part") == {
        "256/256 FLASHINFER_MLA_SPARSE TP4 pure 36K:0": (32769, 36864),
        f"256/256 {MLA} TP4 pure 48K:0": (32769, 49152),
        f"256/256 {INFER8} pure 64K:0": (32769, 65536),
        f"256/256 {MLA} TP8 pure 112K:0": (32769, 114688),
    }


def test_shadowed_by_dense(audited: TableAudit) -> None:
    assert rows(audited, "shadowed", None) == {
        f"192/128 {MLA} TP1 any 2K:1536": (1, 2048),
        f"192/128 {MLA} TP2 any 2K:512": (1, 2048),
        f"192/128 {MLA} TP4 any 2K:512": (1, 2048),
        f"192/128 {MLA} TP8 any 2K:512": (1, 2048),
        f"192/128 {INFER8} any 2K:512": (1, 2048),
    }


def test_pure_limits(audited: TableAudit) -> None:
    assert audited.limits == (32768, 23040, 16384, 11520)
    assert rows(audited, "pure-limit", 4) == {"mask workspace": (16384, 16384)}


def test_more_prefills_kill_more(audited: TableAudit) -> None:
    dead = [set(rows(audited, "dead-row", each)) for each in (1, 2, 4, 8)]
    assert [len(each) for each in dead] == [3, 8, 8, 13]
    assert all(few <= many for few, many in pairwise(dead))


def test_gaps(audited: TableAudit) -> None:
    gaps = {(each.row, each.lengths) for each in audited.findings if each.kind == "gap"}
    assert {
        (f"192/128 {MLA} TP1 any", (2049, 4095)),
        (f"192/128 {INFER8} any", (16385, 32767)),
        (f"256/256 {MLA} TP2 context", (6145, 8192)),
        (f"256/256 {MLA} TP4 context", (24577, 32768)),
    } <= gaps
    assert len(gaps) == 9


def test_every_reach_agrees_with_asking_every_tile(audited: TableAudit) -> None:
    """Brute force over query lengths at tile edges and beside them, with the least context."""
    rules = load_rules("vllm-0.33")
    for row in audited.rows:
        for prefills, left in zip(audited.prefills, row.reaches, strict=True):
            if left.wanted is None:
                continue
            first, last = left.wanted
            low = row.entry.sequences(row.topk)[0]
            tiles = {tile + step for tile in range(0, last + 256, 256) for step in (0, 1)}
            for query in sorted({first, last, *tiles}):
                if first <= query <= last:
                    seq = query if row.entry.which == "pure" else max(low, query + (row.entry.which == "context"))
                    alive = left.alive is not None and left.alive[0] <= query <= left.alive[1]
                    assert workspace_guard(rules, prefills, query, seq - query).value is alive, (row, prefills, query)


def test_boundaries_to_probe(audited: TableAudit) -> None:
    probes = {(probe.group, probe.prefills): probe.boundaries for probe in audited.probes}
    found = probes[f"256/256 {MLA} TP4", 1]
    assert found.query == (128, 4095, 8191, 16383, 32767, 32768)
    assert found.seq == (2048, 8192, 16384, 24576, 34816, 49152)
    assert 16384 in probes[f"256/256 {MLA} TP4", 4].query


def test_july_floor_overrides_its_cap() -> None:
    found = merge([audit_rules(load_rules(version), (1,)) for version in rule_versions()])
    (versions,) = [versions for finding, versions in found.items() if finding.kind == "cap-overridden"]
    assert versions == ["vllm-47327", "vllm-48407", "vllm-48770", "vllm-50906"]
    (finding,) = [finding for finding in found if finding.kind == "cap-overridden"]
    assert (finding.level, finding.lengths) == ("warning", (65536, 131072))


def test_masks_overran_before_the_guard() -> None:
    (finding,) = [each for each in audit_rules(load_rules("vllm-48770"), (1,)).findings if each.kind == "overrun"]
    assert (finding.level, finding.lengths) == ("warning", (23041, 32768))


def test_another_workspace_revives_rows() -> None:
    rules = load_rules("vllm-0.33")
    assert rules.mask_workspace is not None
    wide = replace(rules, mask_workspace=replace(rules.mask_workspace, max_bytes=2048 << 20))
    assert rows(audit_rules(wide, (1,)), "dead-row") == rows(audit_rules(wide, (1,)), "dead-part") == {}


def test_layers_that_cannot() -> None:
    kinds = {
        version: {each.kind for each in audit_rules(load_rules(version), (1,)).findings} for version in rule_versions()
    }
    assert [version for version, found in kinds.items() if "capability" in found] == [
        "vllm-48770", "vllm-50906", "vllm-51298", "vllm-52512",
    ]  # fmt: skip


def test_entries_know_where_the_scan_reaches_them() -> None:
    row = load_rules("vllm-0.33").tables[256, 256, MLA, 2]
    found = [(each.label, each.low) for each in entries((256, 256, MLA, 2), row)]
    assert found == [("pure 20K:0", 1), ("context 6K:4K", 1), ("context 10K:8K", 6145)]


def test_command_on_the_shipped_tables(route) -> None:
    code, out, err = route("--audit", "--json", "-")
    read = json.loads(out)
    assert code == 0 and read["summary"]["error"] == 0 and read["summary"]["warning"] == 5
    assert all(
        {"kind", "row", "level", "prefills", "lengths", "message", "rules"} == set(each) for each in read["findings"]
    )
    assert len(read["boundaries"]) == 4 * (5 * 4 + 11 * 3)
    assert max(map(len, err.splitlines())) <= 80


@pytest.mark.parametrize(
    ("table", "row", "words"),
    [
        ("pure = [[8192, 0], [4096, 0]]", "256/256 B TP1 any 4K:0", "unsorted"),
        ("pure = [[8192, 0], [8192, 64]]", "256/256 B TP1 any 8K:64", "contradicts the interval before"),
        ("pure = [[64, 65]]", "256/256 B TP1 any 64:65", "no query is longer than its sequence"),
        (f"pure = []\n{TABLE}pure = [[8192, 0]]", "tables row 2", "contradicts an earlier row"),
    ],
    ids=["unsorted", "same-end", "never", "twice"],
)
def test_contradictions_are_errors(route, tmp_path: Path, table: str, row: str, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + TABLE + table, encoding="utf-8")
    code, out, _ = route("--audit", "--rules", str(path), "--json", "-")
    errors = [each for each in json.loads(out)["findings"] if each["level"] == "error"]
    assert code == 1 and len(errors) == 1
    assert errors[0]["kind"] == "contradiction" and errors[0]["row"].endswith(row) and words in errors[0]["message"]
    assert route("q9", "--rules", str(path))[0] == 2


def test_a_file_shows_its_own_rows_and_folds_what_it_inherits(route, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    table = TABLE.replace('"B"', '"FLASHMLA_SPARSE"').replace("= 1", "= 4")
    path.write_text(HEAD + table + "pure = [[16384, 0]]\ncontext = []\n", encoding="utf-8")
    code, out, err = route("--audit", "--rules", str(path), "--json", "-")
    inherited = len(load_rules("vllm-0.33").tables) - 1
    assert code == 0 and "pure 16K:0" in err and f"{inherited} inherited rows folded" in err
    assert "192/128" not in err and "TP8" not in err and len(err.splitlines()) < 40
    whole = route("--audit", "--rules", str(path), "--all", "--json", "-")
    assert "192/128" in whole[2] and "folded" not in whole[2]
    assert [json.loads(text)["findings"] for text in (out, whole[1])] == [json.loads(out)["findings"]] * 2
    assert route("q9", "--all")[0] == 2


def test_a_row_of_its_own_without_intervals_is_shown(route, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + TABLE.replace('"B"', '"FLASHMLA_SPARSE"') + "pure = []\n", encoding="utf-8")
    told = route("--audit", "--rules", str(path))[1]
    assert "no interval" in told and "never" in told and "192/128" not in told


def test_what_is_wrong_with_an_inherited_row_is_told_all_the_same(route, tmp_path: Path) -> None:
    base, path = tmp_path / "base.toml", tmp_path / "x.toml"
    base.write_text(HEAD.replace('"x"', '"base"') + TABLE + "pure = [[64, 65]]", encoding="utf-8")
    path.write_text(HEAD.replace("vllm-0.33", "base") + TABLE.replace("= 1", "= 2") + "pure = []", encoding="utf-8")
    code, _, err = route("--audit", "--rules", str(path), "--json", "-")
    assert code == 1 and "error: contradiction" in err and "no query is longer than its sequence" in err


def test_a_row_that_no_gate_admits(route, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + TABLE.replace("[256, 256]", "[96, 64]") + "pure = [[8192, 0]]", encoding="utf-8")
    code, out, _ = route("--audit", "--rules", str(path), "--json", "-")
    assert code == 0
    assert [each["row"] for each in json.loads(out)["findings"] if each["kind"] == "gate"] == ["96/64 B TP1"]


def test_one_geometry_and_other_numbers(route) -> None:
    _, out, _ = route(
        "--audit", "--rules", "vllm-0.33", "--geometry", "deepseek-v3.2", "--prefills", "3", "--json", "-"
    )
    read = json.loads(out)
    assert {each["row"].split()[0] for each in read["boundaries"]} == {"192/128"}
    assert {each["prefills"] for each in read["boundaries"]} == {3}
