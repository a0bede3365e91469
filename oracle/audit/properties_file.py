"""What the properties kill alone, in ``fixtures/faults/properties.json``: the figures that the documentation states."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...fixtures import PATH
from ..environment import environment
from ..errors import BadInput
from ..properties.table import PROPERTIES
from .result import CONFIDENCE, Audit, upper_bound

FILE = PATH / "faults" / "properties.json"
BEGIN, END = "<!-- properties -->", "<!-- /properties -->"
SCHEMA = "attnoracle.property-audit-file/1"
_FACTS = ("attnoracle", "git", "date", "python", "torch", "triton", "cpus")


def summary(audit: Audit) -> dict[str, Any]:
    """The figures of an audit in which properties took the place of all checks.

    ``kills`` counts the first three properties that killed a fault, and is no ranking: a fault is left after them.
    """
    kills = Counter(name for trial in audit.trials if trial.killed for name in trial.outcome.checks)
    operators = dict.fromkeys(trial.fault.operator for trial in audit.trials)
    runs, alarms = len(audit.runs), len(audit.rejections)
    return {
        **audit.counts(),
        "by_operator": {name: _of(audit, name) for name in operators},
        "kills": {one.name: kills[one.name] for one in PROPERTIES if kills[one.name]},
        "sole_kills": {one.name: audit.sole()[one.name] for one in PROPERTIES if audit.sole()[one.name]},
        "good_runs": runs,
        "false_alarms": alarms,
        "false_alarm_upper_bound": upper_bound(alarms, runs) if runs else None,
        "confidence": CONFIDENCE,
        "seconds": round(audit.seconds, 1),
        "exit_code": exit_code(audit),
    }


def _of(audit: Audit, operator: str) -> dict[str, int]:
    trials = [trial for trial in audit.trials if trial.fault.operator == operator and trial not in audit.not_run]
    return {"faults": len(trials), "killed": sum(trial.killed for trial in trials)}


def lost(audit: Audit) -> list[str]:
    """Faults that survived and that the committed file has as killed."""
    known = recorded()["faults"] if FILE.is_file() else {}
    return [trial.fault.name for trial in audit.survivors if known.get(trial.fault.name)]


def exit_code(audit: Audit) -> int:
    """1 with a right kernel rejected, or a fault alive that the committed file has as killed; 2 if nothing ran."""
    if audit.rejections or lost(audit):
        return 1
    return 0 if len(audit.trials) > len(audit.not_run) or audit.runs else 2


def compact(audit: Audit) -> str:
    """JSON text: the figures, and a line for every fault with the first properties that killed it."""
    facts = environment()
    faults = ",\n".join(
        f"    {json.dumps(trial.fault.name)}: {json.dumps(list(trial.outcome.checks))}" for trial in audit.trials
    )
    figures = {name: value for name, value in summary(audit).items() if name != "exit_code"}
    head = {"schema": SCHEMA, "environment": {name: facts[name] for name in _FACTS}, "summary": figures}
    return json.dumps(head, indent=2)[:-2] + f',\n  "faults": {{\n{faults}\n  }}\n}}\n'


def block(audit: Mapping[str, Any]) -> str:
    """The figures in words for the documentation, markers included."""
    s = audit["summary"]
    ran = s["faults"] - s["not_run"]
    rows = "\n".join(
        f"| {name} | {one['faults']} | {one['killed']} | {one['killed'] / one['faults']:.0%} |"
        for name, one in s["by_operator"].items()
        if one["faults"]
    )
    told = (
        f"{s['killed']} of {ran} faults ({s['kill_rate']:.0%}) die by properties alone, of those planted in simulated"
    )
    return f"""{BEGIN}
{told}
kernels and the reference pipeline; {s["good_runs"]} runs of right kernels gave {s["false_alarms"]} false alarms.

| operator | faults | killed | share |
| --- | ---: | ---: | ---: |
{rows}
{END}"""


def updated(text: str, audit: Mapping[str, Any]) -> str:
    """A page with the block replaced. Raises BadInput if the markers do not stand there once each, in order."""
    found = re.findall(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if len(found) != 1:
        raise BadInput(f"docs/properties.md: expected {BEGIN} and {END} once each, in this order")
    return text.replace(found[0], block(audit))


def recorded() -> dict[str, Any]:
    """The committed file. Raises BadInput if there is none."""
    if not FILE.is_file():
        raise BadInput(f"no {FILE.name} beside the fixtures: run attnoracle audit --properties --write in a checkout")
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
