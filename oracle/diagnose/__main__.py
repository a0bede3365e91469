"""Measures diagnosis and shrinking over the catalogue: ``python -m attnoracle.oracle.diagnose --journal FOLDER
[--write]``.

Takes some hours of one core; what the journal has is not done again, so it can be broken off, and shared out
with ``--part 0 --parts 2``. ``--write`` renews the committed file from the journal, and the table in its page of the
docs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..device import settle
from ..environment import environment
from . import layer_measure
from .measure import FILE, load_journal, run, text
from .page import update


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attnoracle.oracle.diagnose", description=__doc__)
    parser.add_argument("--journal", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("--only", choices=("diagnosis", "shrinking", "layer"), help="one of them")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the committed file; measures nothing")
    given = parser.parse_args()
    given.journal.mkdir(exist_ok=True)
    if given.write:
        measured = {kind: load_journal(given.journal, kind) for kind in ("diagnosis", "shrinking", "layer")}
        FILE.write_text(text(**measured, environment=environment()), encoding="utf-8")
        update()
        return
    settle("cpu")
    for kind in ("diagnosis", "shrinking"):
        if given.only in (None, kind):
            journal = given.journal / f"{kind}-{given.part}.jsonl"
            run(journal, shrinking=kind == "shrinking", part=given.part, parts=given.parts)
    if given.only in (None, "layer") and given.part == 0:
        layer_measure.run(given.journal / "layer-0.jsonl")


main()
