"""Loading rules: what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.policies import load_rules, read_rules, rule_versions
from attnoracle.reference.routing import TableRow

HEAD = 'name = "x"\ndate = "2026-01-01"\nsource = "a test"\nbased_on = "vllm-0.33"\n'
TABLE = HEAD + '[[tables]]\nhead_dims = [96, 64]\nbackend = "B"\ntensor_parallel = 1\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_versions_in_order() -> None:
    versions = rule_versions()
    assert versions[:4] == ("vllm-47327", "vllm-48407", "vllm-48770", "vllm-50906")
    assert versions[4:] == ("vllm-51298", "vllm-52512", "vllm-53785", "vllm-0.33", "attnoracle")
    assert all(load_rules(version).name == version for version in versions)


def test_unknown_version_offers_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"unknown rule version 'vllm-52513'; nearest: vllm-52512"):
        load_rules("vllm-52513")


def test_a_new_dimension_is_an_entry(tmp_path: Path) -> None:
    rules = read_rules(write(tmp_path, TABLE + "pure = [[64, 0], [128, 32]]\ncontext = []\n"))
    assert rules.tables[96, 64, "B", 1] == TableRow(pure=((64, 0), (128, 32)), context=())
    assert rules.tables.items() > load_rules("vllm-0.33").tables.items()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(TABLE + "pure = [[128, 0], [64, 0]]", "tables row 1, pure: .64, 0.: unsorted", id="unsorted"),
        pytest.param(TABLE + "pure = [[64, 0], [64, 9]]", "tables row 1, pure: .64, 9.: contradicts", id="same-end"),
        pytest.param(TABLE + "pure = [[64, 65]]", "tables row 1, pure: .*can never hold", id="query-beyond-sequence"),
        pytest.param(TABLE + "pure = []\ncontext = [[0, 0]]", "row 1, context: .*positive length", id="empty-interval"),
        pytest.param(TABLE + "pure = [[64, -1]]", "row 1, pure: expected a whole number of 0", id="negative-query"),
        pytest.param(TABLE + "pure = [64, 0]", "row 1, pure: expected a list of", id="flat-list"),
        pytest.param(TABLE + "pure = [[64, 0]]\nextra = 1", "row 1: unknown key 'extra'", id="unknown-row-key"),
        pytest.param(
            TABLE + "pure = []\n" + TABLE.removeprefix(HEAD) + "pure = []",
            "tables row 2: contradicts an earlier row",
            id="row-twice",
        ),
        pytest.param(HEAD + "[flags]\nnonesuch = true", "flags: unknown key 'nonesuch'", id="unknown-flag"),
        pytest.param(HEAD + "[flags]\nindexer_skip = 1", "indexer_skip: expected bool", id="flag-type"),
        pytest.param(HEAD + '[flags]\ncontext_rows_floor = "page"', "context_rows_floor: expected one", id="floor"),
        pytest.param(HEAD + "colour = 1", "unknown key 'colour'", id="unknown-key"),
        pytest.param(HEAD.replace("vllm-0.33", "x"), "got a circle", id="circle"),
        pytest.param(HEAD.replace("vllm-0.33", "y"), "expected a file y.toml", id="no-base"),
        pytest.param(HEAD.replace('name = "x"\n', ""), "key 'name': expected a string", id="no-name"),
        pytest.param("name = ", "expected a TOML file", id="not-toml"),
        pytest.param(HEAD + "thresholds = 1", r"expected a list of rows \[\[thresholds\]\]", id="not-rows"),
        pytest.param(HEAD + '[[thresholds]]\nbackend = "B"\ndevice_family = 90', "row 1, otherwise", id="threshold"),
        pytest.param(
            HEAD + '[[thresholds]]\nbackend = "B"\ndevice_family = 90\notherwise = 1\nby_heads = { x = 1 }',
            "by_heads: expected numbers of heads",
            id="threshold-heads",
        ),
        pytest.param(HEAD + "[[gates]]\ngeometries = [[1, 2]]", "geometries: expected", id="gate-geometry"),
        pytest.param(HEAD + "[[gates]]\nquantized_cache = true", "row 1, provider: expected a name", id="gate-name"),
        pytest.param(HEAD + "[mask_workspace]\nmax_bytes = 1", "mask_workspace: incomplete", id="workspace"),
        pytest.param(
            HEAD + "[mask_workspace]\nmax_bytes = 0\nword_multiple = 1\nguarded = true",
            "max_bytes: expected a whole number of 1",
            id="workspace-size",
        ),
    ],
)
def test_refused(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput, match=words) as caught:
        read_rules(path)
    assert str(caught.value).startswith(str(path))


def test_rules_without_a_base_must_be_whole(tmp_path: Path) -> None:
    rules = read_rules(write(tmp_path, HEAD.replace('based_on = "vllm-0.33"\n', "")))
    assert rules.thresholds == {}
    assert rules.mask_workspace is None
