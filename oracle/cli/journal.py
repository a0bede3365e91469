"""The state of a run of checks: a line for each verdict, so that a run that was killed goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..environment import commit, version
from ..errors import BadInput
from ..fleet.worker import Pair
from ..records.state_file import StateFile
from ..records.verdict_json import finite, parse_verdict, verdict_record
from ..verdict import Verdict

SCHEMA = "attnoracle.check-state/1"
#: What the settings are called where they differ.
_SETTING = {"git": "the commit of attnoracle", "guests": "the kernels of --impl or what they promise"}


class Journal(StateFile):
    """Verdicts by case and implementation. Without a path nothing is kept.

    ``settings`` is what a verdict depends on beside its pair: device, contracts of guests. Raises BadInput, and leaves
    the file as it is, for one that is no state and for that of another version, commit or setting.
    """

    def __init__(self, path: str | None, settings: Mapping[str, Any]) -> None:
        self.verdicts: dict[Pair, Verdict] = {}
        if path is None:
            super().__init__(None)
            return
        head = finite({"schema": SCHEMA, "attnoracle": version(), "git": commit(), **settings})
        try:
            super().__init__(path)
            if self.text:
                self.verdicts = _parsed(path, self.text, head)
            self.begin(head)
        except OSError as error:
            raise BadInput(f"--resume {path}: cannot be read and written: {error.strerror}") from None

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.case, verdict.implementation] = verdict
        self.line(finite(verdict_record(verdict)))


def _parsed(path: str, text: str, head: Mapping[str, Any]) -> dict[Pair, Verdict]:
    lines = text.splitlines()
    try:
        found = json.loads(lines[0])
        if found["schema"] != SCHEMA:
            raise KeyError
    except (ValueError, KeyError, TypeError, IndexError):
        raise BadInput(f"--resume {path}: line 1: expected the state of a check; name another file") from None
    differing = [name for name in head if found.get(name) != json.loads(json.dumps(head[name]))]
    if differing:
        told = ", ".join(_SETTING.get(name, name) for name in differing)
        raise BadInput(f"--resume {path}: the state of another run (differs in {told}); name another file")
    verdicts: dict[Pair, Verdict] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            verdict = parse_verdict(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"--resume {path}: line {number}: expected a verdict: {error}") from None
        verdicts[verdict.case, verdict.implementation] = verdict
    return verdicts
