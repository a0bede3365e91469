"""Looks into a failure: the smallest case, a bundle of it, the likely cause. Runs in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ..case import Case
from ..errors import OracleError
from ..records.verdict_json import finite, verdict_record
from ..verdict import Verdict
from .scenes import KINDS

#: Seconds for shrinking one failure.
SECONDS = 45.0
#: How the reason of a verdict begins whose kernel took its process with it.
_ENDED = ("worker died", "no answer", "took ", "worker closed")


def ends_its_process(verdict: Verdict) -> bool:
    """Whether the kernel may not be run beside anything that is to stay alive."""
    return verdict.status == "ERROR" and verdict.reason.startswith(_ENDED)


def look_into(case_id: str, name: str, device: str, apart: bool, seconds: float = SECONDS) -> dict[str, Any]:
    """JSON-ready but for ``files``, the files of the bundle as bytes.

    ``case`` (empty where it did not fail again), ``signature``, ``verdict`` of the smallest case, ``runs``,
    ``conclusion`` of the diagnosis, ``note`` on what is missing. ``apart``: every run has a process that may die.
    """
    from dataclasses import replace

    from ..cause.again import apart as in_process
    from ..cause.again import here
    from ..cause.named import named
    from ..shrink import Trials, shrink

    case = Case.parse(case_id)
    if case.operator in KINDS:
        return _of_scene(case, name, device, seconds)
    make = named(name, case.operator)
    found: dict[str, Any] = {"case": "", "conclusion": "", "note": "", "files": {}}
    try:
        if apart:
            with in_process(name, device, seconds) as run:
                shrunk = shrink(case, Trials(run), most_seconds=seconds)
        else:
            shrunk = shrink(case, Trials(here(make, device)), most_seconds=seconds)
    except OracleError as error:
        return {**found, "note": f"not shrunk: {error}"}
    verdict = replace(shrunk.verdict, implementation=name)
    found |= {
        "case": shrunk.case.id,
        "signature": shrunk.signature.as_list(),
        "verdict": finite(verdict_record(verdict)),
        "runs": shrunk.runs,
    }
    found["files"] = _bundle(verdict, make(), case_id)
    if apart:
        return {**found, "note": "not diagnosed: it ends its process"}
    return found | {"conclusion": _conclusion(shrunk.case, make, device)}


def _of_scene(case: Case, name: str, device: str, seconds: float) -> dict[str, Any]:
    """The same of a sequence of batches: what broke is its conclusion."""
    from ..cause.signature import signature
    from .scene_play import play, shrunk

    verdict, runs = shrunk(case, lambda one: play(one, name, device), seconds)
    if verdict is None:
        return {"case": "", "conclusion": "", "note": "it did not fail again", "files": {}}
    return {
        "case": verdict.case.id,
        "signature": signature(verdict).as_list(),
        "verdict": finite(verdict_record(verdict)),
        "runs": runs,
        "conclusion": verdict.reason,
        "note": "",
        "files": _scene_bundle(verdict, case.id),
    }


def _scene_bundle(verdict: Verdict, original: str) -> dict[str, bytes]:
    from ..bundle.scene import write_scene

    with tempfile.TemporaryDirectory() as folder:
        place = write_scene(Path(folder) / "bundle", verdict, original=original)
        return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


def _bundle(verdict: Verdict, implementation: Any, original: str) -> dict[str, bytes]:
    from ..bundle import write

    with tempfile.TemporaryDirectory() as folder:
        place = write(Path(folder) / "bundle", verdict, implementation, original=original)
        return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


def _conclusion(case: Case, make: Any, device: str) -> str:
    from ..diagnose import diagnose

    try:
        return diagnose(case, make, device).conclusion
    except OracleError as error:
        return f"not diagnosed: {error}"
