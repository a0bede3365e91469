"""Words that all reports of a replay share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..replay.play import Judged
from .plain import plural

STYLES = {"PASS": "green", "FAIL": "bold red"}
#: Things of one kind that are spelt out.
SPELT = 3


def met(seen: Sequence[Judged]) -> Text:
    """Whether everything was seen as it was to be."""
    missed = [one for one in seen if not one.met]
    if missed:
        names = ", ".join(f"{one.variant} {one.name}" for one in missed[:SPELT])
        return Text(f"not so in {len(missed)} of {plural(len(seen), 'step')}: {names}", "bold red")
    failed = sum(one.status == "FAIL" for one in seen)
    return Text(f"seen so in {plural(len(seen), 'step')} ({failed} fail)", "green")
