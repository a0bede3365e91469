"""The audit file: what the project states about itself, in ``fixtures/faults/audit.json``."""

from __future__ import annotations

import json
from typing import Any

from ...fixtures import PATH
from ..environment import environment
from ..errors import BadInput
from ..faults import FAULTS
from .result import Audit

FILE = PATH / "faults" / "audit.json"
SCHEMA = "attnoracle.audit-file/1"
_FACTS = ("attnoracle", "git", "date", "python", "torch", "triton", "cpus")


def compact(audit: Audit) -> str:
    """JSON text: the summary, the right kernels with their runs, and a line for every fault with its killers.

    Raises BadInput for an audit that left out a fault of the catalogue, could not run one, or had no good runs.
    """
    missing = {fault.name for fault in FAULTS} - {t.fault.name for t in audit.trials if t not in audit.not_run}
    if missing or not audit.runs:
        raise BadInput(
            f"the audit file holds whole audits: {len(missing)} faults and {len(audit.runs)} good runs left out"
        )
    facts = environment()
    good: dict[str, list[int]] = {}
    for run in audit.runs:
        counts = good.setdefault(run.name, [0, 0])
        counts[0] += 1
        counts[1] += run.bad
    sections = [
        f'  "schema": {json.dumps(SCHEMA)}',
        f'  "environment": {json.dumps({name: facts[name] for name in _FACTS})}',
        f'  "summary": {json.dumps(audit.summary(), indent=2)}'.replace("\n", "\n  "),
        _lines("good", {name: {"runs": runs, "rejected": rejected} for name, (runs, rejected) in good.items()}),
        _lines("faults", {t.fault.name: {"killers": t.outcome.checks, "case": t.outcome.case} for t in audit.trials}),
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _lines(name: str, entries: dict[str, Any]) -> str:
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    return f'  "{name}": {{\n{lines}\n  }}'


def recorded() -> dict[str, Any]:
    """The committed file. Raises BadInput if there is none."""
    if not FILE.is_file():
        raise BadInput(f"no {FILE.name} beside the fixtures: run attnoracle audit --write in a checkout")
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
