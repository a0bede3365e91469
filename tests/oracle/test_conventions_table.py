"""The table of conventions in the docs is the contracts'."""

from dataclasses import fields, replace

import pytest

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.optimized.contract import Contract
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.judge.conventions import HYPOTHESES, LSE
from attnoracle.oracle.reports.conventions_table import ARITHMETIC, BEGIN, END, block, main, page, updated


def test_the_page_is_current():
    text = page().read_text()
    assert updated(text, IMPLEMENTATIONS) == text, "python -m attnoracle.oracle.reports.conventions_table --write"


def test_every_implementation_and_every_convention_is_there():
    text = block(IMPLEMENTATIONS)
    assert [one.name for one in IMPLEMENTATIONS if f"`{one.name}`" not in text] == []
    headings = text.replace(" ", "")
    shown = {
        "lse_base": "LSEbase",
        "empty_lse": "LSE,nokey",
        "invalid_index": "invalidindex",
        "index_space": "indexspace",
    }
    assert all(heading in headings for heading in shown.values())
    assert set(ARITHMETIC) <= {field.name for field in fields(Contract)}


def test_a_contract_that_changes_changes_the_table():
    first = IMPLEMENTATIONS[0]
    other = replace(first, contract=replace(first.contract, empty_lse="nan", lse_base="2"))
    assert block([other, *IMPLEMENTATIONS[1:]]) != block(IMPLEMENTATIONS)


def test_every_name_is_explained_on_the_page():
    text = page().read_text().split(BEGIN)[0]
    words = [one.name for one in HYPOTHESES if "+empty" not in one.name]
    families = {name for name in words if f"`{name}`" in text}
    short = {name for name in words if any(name.endswith(part) for part in ("--inf", "-nan", "-zero", "-sentinel"))}
    short |= {"index-space-relative", "index-space-one-based", "invalid-index-clamped"}
    assert set(words) - families - short == set()
    assert LSE


@pytest.mark.parametrize("text", ["", END + BEGIN, BEGIN + BEGIN + END])
def test_a_page_without_its_markers_is_refused(text):
    with pytest.raises(BadInput, match="once each"):
        updated(text, IMPLEMENTATIONS)


def test_the_command_prints_the_table_and_refuses_other_words(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == block(IMPLEMENTATIONS)
    assert main(["--help-me"]) == 2
