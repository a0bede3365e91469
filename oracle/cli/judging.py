"""What ``check`` and ``repro`` share: run the pairs, then write the documents."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..pool import Pool
from ..reports.progress import progress
from ..reports.summary import Summary
from ..verdict import Verdict
from ..worker import Pair
from .terminal import check_target, console, write


@dataclass(frozen=True, slots=True)
class Documents:
    """Files to write besides what people read."""

    json: str | None
    junit: str | None = None

    def __post_init__(self) -> None:
        check_target("--json", self.json)
        check_target("--junit", self.junit)

    @property
    def owns_stdout(self) -> bool:
        """Whether stdout carries a document, so that people read stderr."""
        return self.json == "-" or self.junit == "-"

    def write(self, command: Sequence[str], summary: Summary, verdicts: Sequence[Verdict]) -> None:
        if self.json is None and self.junit is None:
            return
        from ..environment import environment
        from ..reports.json_report import check_document, dumps
        from ..reports.junit import junit

        facts = environment()
        write(self.json, lambda: dumps(check_document(command, facts, summary, verdicts)))
        write(self.junit, lambda: junit(verdicts, facts))


def judge(pool: Pool, pairs: Sequence[Pair], *, quiet: bool) -> tuple[list[Verdict], Summary]:
    """Verdicts in the order of the pairs, with progress on stderr meanwhile."""
    started = time.monotonic()
    # A kernel that prints must not get between the lines of a document.
    with progress(console(stderr=True), len(pairs), quiet=quiet) as advance, contextlib.redirect_stdout(sys.stderr):
        verdicts = pool.run(pairs, on_result=lambda i, verdict: None, on_done=advance)
    return verdicts, Summary.of(verdicts, time.monotonic() - started)
