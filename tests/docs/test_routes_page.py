"""The page on rules names every key that a file of them may have, and the page on capture every field that is read."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from attnoracle.oracle import policies
from attnoracle.oracle.engines import watch
from attnoracle.oracle.engines.shape import VLLM
from attnoracle.oracle.errors import BadInput
from attnoracle.reference.routing import Gate, MaskWorkspace, Rules

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROUTES = (DOCS / "routes.md").read_text(encoding="utf-8")
CAPTURE = (DOCS / "capture.md").read_text(encoding="utf-8")
RECORDS = {field.name for kind in (Gate, MaskWorkspace) for field in fields(kind)}


@pytest.mark.parametrize("row", ["thresholds", "tables"])
def test_every_key_of_a_row_is_named(row: str, tmp_path: Path) -> None:
    """Known keys are read off the error that a reader meets."""
    path = tmp_path / "x.toml"
    path.write_text(f'name = "x"\ndate = ""\nsource = ""\n[[{row}]]\nnone_such = 1\n', encoding="utf-8")
    with pytest.raises(BadInput, match="unknown key 'none_such'") as raised:
        policies.read_rules(path)
    known = str(raised.value).split("known: ")[1].split(", ")
    assert len(known) >= 5 and [key for key in known if f"`{key}" not in ROUTES] == []


def test_every_key_of_the_file_is_named() -> None:
    known = {field.name for field in fields(Rules)} | RECORDS | {"based_on"}
    assert sorted(key for key in known if not re.search(rf"[`\[]{key}[`\]]", ROUTES)) == []


def test_every_attribute_and_field_of_a_capture_is_named() -> None:
    paths = [getattr(VLLM, field.name) for field in fields(VLLM)]
    read = re.findall(r'need_of_step\(metadata, "(\w+)"\)', Path(watch.__file__).read_text(encoding="utf-8"))
    assert len(read) == 5
    assert [each for each in (*paths, *read) if not re.search(rf"`{re.escape(each)}[`(]", CAPTURE)] == []
