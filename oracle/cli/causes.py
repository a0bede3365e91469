"""From the failures of a check to their causes: shrunk and bundled, or diagnosed, once for every kind of failure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..errors import BadInput, OracleError
from ..verdict import Verdict

#: Kinds of failure of one implementation that are looked into.
KINDS = 3
#: Seconds for shrinking one failure.
SECONDS = 60.0


def kinds(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The first failure of every kind of every implementation, at most ``KINDS`` each, those that ran."""
    from ..cause.signature import signature

    found: dict[str, dict[str, Verdict]] = {}
    for verdict in verdicts:
        if verdict.bad and not verdict.reason.startswith(("worker died", "no answer")):
            found.setdefault(verdict.implementation, {}).setdefault(str(signature(verdict)), verdict)
    return [verdict for of_one in found.values() for verdict in list(of_one.values())[:KINDS]]


def bundle(screen: Console, folder: Path, verdicts: Sequence[Verdict], device: str) -> None:
    """Shrink and bundle the failures into folders of their own under ``folder``."""
    from ..bundle import write
    from ..bundle.write import folder_name
    from ..cause.again import fails_later, here
    from ..cause.named import named
    from ..shrink import Trials, shrink

    for verdict in kinds(verdicts):
        make, later = named(verdict.implementation, verdict.case.operator), fails_later(verdict)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                found = shrink(verdict.case, Trials(here(make, device, sequence=later)), most_seconds=SECONDS)
                into, original = folder / folder_name(found.verdict), verdict.case.id
                place = write(into, found.verdict, make(), sequence=later, original=original)
        except OracleError as error:
            screen.print(Text(f"no bundle of {verdict.implementation}: {error}", "yellow"), soft_wrap=True)
            continue
        screen.print(Text.assemble(("bundle  ", "dim"), str(place)), soft_wrap=True)
        screen.print(Text.assemble(("  case  ", "dim"), found.case.id), soft_wrap=True)


def diagnose(screen: Console, verdicts: Sequence[Verdict], device: str) -> list[dict[str, Any]]:
    """Diagnose the failures; returns what was found as records."""
    from ..cause.named import named
    from ..diagnose import diagnose as find
    from ..reports.diagnose_report import record, report

    records = []
    for verdict in kinds(verdicts):
        make = named(verdict.implementation, verdict.case.operator)
        screen.print(Text.assemble("\n", ("why  ", "dim"), (verdict.implementation, "bold")))
        screen.print(Text(f"     {verdict.case.id}", "dim"), soft_wrap=True)
        with contextlib.redirect_stdout(sys.stderr):
            found = find(verdict.case, make, device, name=verdict.implementation)
        report(screen, found)
        records.append(record(found) | {"implementation": verdict.implementation})
    return records


def check_folder(folder: str | None) -> Path | None:
    """Raises BadInput where bundles could not be written, before the work is done."""
    if folder is None:
        return None
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise BadInput(f"--bundle {folder}: expected a folder, got a file")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--bundle {folder}: no folder {path.absolute().parent}; make it first")
    return path
