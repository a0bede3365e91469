"""The state of an audit: a line for each finished job, so that an interrupted audit goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..environment import commit, version
from ..errors import BadInput
from ..records.state_file import StateFile
from ..verdict import Verdict
from .plan import Job, Settings
from .result import Outcome

SCHEMA = "attnoracle.audit-state/1"


class Journal(StateFile):
    """Outcomes by job key; every new one is on disk before the next begins. Without a path nothing is kept.

    Raises BadInput for a file that is no state, or that of another version of the project or another seed.
    """

    def __init__(self, path: str | None, settings: Settings) -> None:
        self.outcomes: dict[str, Outcome] = {}
        if path is None:
            super().__init__(None)
            return
        head = {"schema": SCHEMA, "attnoracle": version(), "git": commit(), "seed": settings.seed}
        head["device"] = settings.device
        head["properties"] = settings.properties
        try:
            super().__init__(path)
            if self.text:
                self.outcomes = _parsed(path, self.text, head)
            self.begin(head)
        except OSError as error:
            raise BadInput(f"--resume {path}: cannot be read and written: {error.strerror}") from None

    def left(self, jobs: Iterable[Job]) -> list[Job]:
        """Those that have no outcome yet."""
        return [job for job in jobs if job.key not in self.outcomes]

    def add(self, verdict: Verdict) -> None:
        outcome = Outcome.of(verdict)
        self.outcomes[outcome.key] = outcome
        self.line(outcome.record())


def _parsed(path: str, text: str, head: dict[str, Any]) -> dict[str, Outcome]:
    try:
        found, *records = [json.loads(line) for line in text.splitlines()]
        outcomes = [Outcome.parse(record) for record in records]
        differing = [name for name in head if found.get(name) != head[name]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"--resume {path}: expected the state of an audit, got something else; name another") from None
    if differing:
        raise BadInput(f"--resume {path}: the state of another audit (differs in {', '.join(differing)}); delete it")
    return {outcome.key: outcome for outcome in outcomes}
