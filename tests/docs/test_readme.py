"""The README's example prints what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_broken_kernel_is_caught_as_printed():
    section = README.partition("## Catch a broken kernel")[2].partition("\n## ")[0]
    blocks = dict(re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
    code, printed = blocks["python"], blocks[""]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(code, "README.md", "exec"), {"__name__": "example"})
    lines = [[line.rstrip() for line in text.splitlines()] for text in (told.getvalue(), printed)]
    assert lines[0] == lines[1]
