"""What ``check`` and ``repro`` share: run the pairs, then write the documents."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..fleet.feed import drive
from ..fleet.kinds import differing
from ..fleet.protocol import Engine
from ..fleet.worker import Pair
from ..records.ledger import Known, apply
from ..reports.page import Attached
from ..reports.plain import plural
from ..reports.progress import progress
from ..reports.summary import Summary
from ..verdict import STATUSES, Status, Verdict
from .terminal import check_target, clean_stdout, console, write


@dataclass(frozen=True, slots=True)
class Documents:
    """Files to write besides what people read; ``-`` is stdout."""

    json: str | None
    junit: str | None = None
    markdown: str | None = None
    html: str | None = None

    def __post_init__(self) -> None:
        taken: dict[str, str] = {}
        for field in fields(self):
            option, target = f"--{field.name}", getattr(self, field.name)
            if target is None:
                continue
            check_target(option, target)
            if target != "-":
                # A kernel may change the folder that a relative path starts from.
                target = str(Path(target).absolute())
                object.__setattr__(self, field.name, target)
            place = target if target == "-" else str(Path(target).resolve())
            if place in taken:
                what = "stdout takes one document" if target == "-" else "one file takes one document"
                raise BadInput(f"{taken[place]} and {option} both go to {target}: {what}; name another for one of them")
            taken[place] = option

    @property
    def owns_stdout(self) -> bool:
        """Whether stdout carries a document, so that people read stderr."""
        return any(getattr(self, field.name) == "-" for field in fields(self))

    def write(
        self,
        command: Sequence[str],
        summary: Summary,
        verdicts: Sequence[Verdict],
        *,
        environment: Mapping[str, Any] | None = None,
        attached: Attached | None = None,
    ) -> None:
        """Write them all; ``environment`` is that of this process unless given."""
        if all(getattr(self, field.name) is None for field in fields(self)):
            return
        from ..environment import environment as here
        from ..reports.json_report import check_document, dumps
        from ..reports.junit import junit
        from ..reports.markdown import markdown
        from ..reports.page import page

        facts = dict(environment) if environment is not None else here()
        diagnoses = attached.diagnoses if attached else ()
        write(self.json, lambda: dumps(check_document(command, facts, summary, verdicts, diagnoses)))
        write(self.junit, lambda: junit(verdicts, facts))
        write(self.markdown, lambda: markdown(verdicts, summary, facts))
        write(self.html, lambda: page(verdicts, summary, facts, command=command, attached=attached))


def judge(
    engine: Engine,
    pairs: Sequence[Pair],
    *,
    quiet: bool,
    resume: str | None = None,
    settings: Mapping[str, Any] | None = None,
    ledger: Sequence[Known] = (),
) -> tuple[list[Verdict], Summary]:
    """Verdicts in the order of the pairs, with progress on stderr meanwhile.

    ``resume`` is a file that keeps every verdict as it comes; what it holds already is not run again.
    """
    from .journal import Journal

    started = time.monotonic()
    with Journal(resume, settings or {}) as journal:
        left = [pair for pair in pairs if pair not in journal.verdicts]
        with progress(console(stderr=True), len(left), quiet=quiet) as advance, clean_stdout():

            def done(verdict: Verdict) -> None:
                journal.add(verdict)
                advance(verdict)

            try:
                drive(engine, left, on_result=lambda i, verdict: None, on_done=done)
            except KeyboardInterrupt:
                _say_interrupted(sum(pair in journal.verdicts for pair in pairs), len(pairs), resume)
                raise
        verdicts = [journal.verdicts[pair] for pair in pairs]
    outcome = apply(ledger, verdicts, datetime.now(UTC).date()) if ledger else None
    return verdicts, Summary.of(verdicts, time.monotonic() - started, outcome, resumed=len(pairs) - len(left))


def _say_interrupted(there: int, all_: int, resume: str | None) -> None:
    """What Ctrl-C leaves; typer ends the command without a word."""
    kept = f"{resume} has them, and the same command goes on" if resume else "with --resume FILE they would be kept"
    print(f"\nattnoracle: interrupted after {there} of {plural(all_, 'verdict')}; {kept}", file=sys.stderr)


def joined(runs: Sequence[tuple[list[Verdict], Summary]]) -> tuple[list[Verdict], Summary]:
    """The runs on several kinds of devices as one, in which an outcome that depends on the device is a problem."""
    if len(runs) == 1:
        return runs[0]
    verdicts = [verdict for run, _ in runs for verdict in run]
    counts: dict[Status, int] = {status: sum(one.counts[status] for _, one in runs) for status in STATUSES}
    problems = tuple(dict.fromkeys(problem for _, one in runs for problem in one.problems))
    notes = tuple(dict.fromkeys(note for _, one in runs for note in one.notes))
    apart = tuple(f"differs by device: {line}" for line in differing(verdicts))
    seconds = sum(one.seconds for _, one in runs)
    return verdicts, Summary(counts, seconds, sum(one.known for _, one in runs), problems + apart, notes)
