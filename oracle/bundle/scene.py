"""The bundle of a sequence of batches: no tensors, since its case draws them, but its steps told one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..campaign.scene_play import Told, play, steps
from ..campaign.scenes import Scene
from ..case import Case
from ..environment import environment
from ..records.verdict_json import verdict_record
from ..reports.json_report import dumps
from ..verdict import Verdict
from .read import Bundle
from .replay import Replay, outcome
from .write import device_of, store

_SCRIPT = '''"""{name} fails on the sequence {case}

Run: python repro.py      needs the package attnoracle; exits 1 while the failure is there, 0 once it is gone.
"""

import sys

from attnoracle.oracle.campaign.scene_play import steps
from attnoracle.oracle.case import Case

broken = 0
for number, told in enumerate(steps(Case.parse({case!r}), {name!r}), {first}):
    print(f"step {{number}}: {{told.route or 'capture'}}")
    for _, words in told.broken:
        print(f"  {{words}}")
    broken += len(told.broken)
sys.exit(1 if broken else 0)
'''


def write_scene(folder: Path, verdict: Verdict, *, original: str = "") -> Path:
    """Write a bundle of a failing sequence into ``folder``; returns it."""
    case, name = verdict.case, verdict.implementation
    files = {
        "verdict.json": dumps(verdict_record(verdict)),
        "environment.json": dumps(environment()),
        "steps.json": dumps({"steps": story(case, name, device_of(verdict))}),
        "repro.py": _SCRIPT.format(name=name, case=case.id, first=0 if _captures(case) else 1),
    }
    content = {one: text.encode() for one, text in files.items()}
    return store(folder, verdict, content, original=original, sequence=True)


def story(case: Case, name: str, device: str) -> list[dict[str, Any]]:
    """What is done in each step and what it broke, up to the first that broke something."""
    scene = Scene.of(case)
    known: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    told = steps(case, name, device)
    try:
        if _captures(case):
            found.append({"step": "capture", "setting": " ".join(scene.setting), **_told(next(told))})
        for number, turn in enumerate(scene.turns, 1):
            cached, known = turn.before(known), turn.after(known)
            requests = [{"request": one, "new": new, "cached": cached.get(one, 0)} for one, new in turn.queries]
            flags = {"preempted": list(turn.preempted), "hits": list(turn.adopted), "flags": list(turn.flags)}
            found.append({"step": number, "requests": requests, **flags, **_told(next(told))})
            if found[-1]["broken"]:
                break
    except StopIteration:
        pass  # graphs end where a step raises or the capture fails
    except Exception as error:  # as the verdict says
        found.append({"raised": f"{type(error).__name__}: {error}"})
    return found


def replay_scene(bundle: Bundle, name: str, device: str) -> Replay:
    """Play a bundle's sequence on ``name`` once more."""
    verdict = play(bundle.case, name, device)
    return Replay(bundle, verdict, outcome(bundle, verdict), False)


def _captures(case: Case) -> bool:
    return case.operator == "graphs" and Scene.of(case).setting[0] != "none"


def _told(told: Told) -> dict[str, Any]:
    return {"route": told.route, "broken": [{"check": check, "said": words} for check, words in told.broken]}
