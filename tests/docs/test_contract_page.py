"""The page of contracts names every field, its values and its default."""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from attnoracle.optimized.contract import Contract, Format
from attnoracle.oracle.guests.external import default_contract
from attnoracle.oracle.guests.probing import _fields

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
ROWS = {row[1]: row[0].split("|") for row in re.finditer(r"^\| `(\w+)` \|.*$", PAGE, re.MULTILINE)}
#: What a file that leaves a field out gets, where the operator decides.
BY_OPERATOR = {
    name
    for name in Contract().as_dict()
    if len({getattr(default_contract(operator), name) for operator in ("dense_mha", "topk_select", "merge_lse")}) > 1
}


def _spelt(value):
    if isinstance(value, float):
        return "2^-22" if value == 2.0**-22 else f"{value:g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("field", fields(Contract), ids=lambda field: field.name)
def test_every_field_stands_there_with_its_values_and_default(field):
    assert field.default is not MISSING
    _, _, values, default, _, _ = ROWS[field.name]
    hint = get_type_hints(Contract)[field.name]
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    named = [value for one in options if get_origin(one) is Literal and one != Format for value in get_args(one)]
    assert [value for value in named if f"`{value}`" not in values] == []
    assert "none" in values or type(None) not in options
    spelt = _spelt(getattr(default_contract("dense_mha"), field.name))
    assert default.strip().startswith(spelt)
    assert field.name in BY_OPERATOR or default.strip() == spelt


def test_nothing_else_stands_there():
    assert set(ROWS) >= {field.name for field in fields(Contract)}


def test_probed_are_the_fields_that_a_probe_answers():
    """Every probe answers with what settles its fields."""
    told = {"lse": "e", "empty": "zero -inf", "invalid": "ignored", "duplicates": "counted", "causal": "bottom-right"}
    told |= {"repeats": "yes", "batch": "no", "probabilities": "fp32", "short": "identity"}
    settled = {*_fields(told)[0], "output"}
    assert {name for name, row in ROWS.items() if name in Contract().as_dict() and row[4].strip()} == settled
