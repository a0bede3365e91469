"""``attnoracle check``: the differential matrix over operators, implementations and geometries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from ..environment import environment
from ..errors import BadInput
from ..fleet.choose import Place
from ..fleet.confinement import Confinement
from ..fleet.pool import Pool, default_jobs
from ..fleet.pool import judge as judge_one
from ..fleet.worker import Pair
from ..records.history import add as add_to_history
from ..reports.summary import FAULT, Summary
from ..verdict import Verdict
from . import causes, guests
from .check_options import Asked, Outputs
from .groups import grouped
from .judging import joined, judge
from .properties import Wished, run_properties
from .sanitize import run_sanitizer
from .selection import pair
from .terminal import console, say


@grouped
def check(context: typer.Context, asked: Asked) -> None:
    """Check implementations against the references."""
    asked.check_together()
    limit, outputs = asked.limit(), asked.outputs()
    geometries = guests.geometries(asked.which.geometry)
    brought = asked.which.brought()
    place = asked.where.place() if brought or not asked.list_ else None
    device = place.device if place else ""
    mine = guests.with_contracts(brought.admitted(), device) if brought else ()
    candidates = asked.which.candidates(mine, but=asked.too_slow)
    if asked.otherwise:
        names = tuple(asked.case or ()), tuple(geometries)
        wished = Wished(*names, device or "cpu", asked.seed, asked.json, asked.list_, asked.quiet)
        if asked.properties:
            raise typer.Exit(run_properties(context, candidates, wished))
        raise typer.Exit(run_sanitizer(context, candidates, wished, limit))

    def pairs() -> list[Pair]:
        return pair(asked.cases(geometries), candidates)

    if asked.list_:
        say("".join(f"{id_}\n" for id_ in dict.fromkeys(case.id for case, _ in pairs())))
        return
    assert place is not None
    settings = {"device": device, "guests": {one.name: one.contract.as_dict() for one in mine}}
    verdicts, summary = _judged(asked, place, pairs, limit, outputs, settings)
    if outputs.history:
        add_to_history(outputs.history, environment(), verdicts)
    _tell(asked, ["attnoracle", *context.obj], outputs, verdicts, summary, device)
    raise typer.Exit(summary.exit_code)


def _judged(
    asked: Asked,
    place: Place,
    pairs: Callable[[], list[Pair]],
    limit: float | None,
    outputs: Outputs,
    settings: Mapping[str, Any],
) -> tuple[list[Verdict], Summary]:
    """Verdicts of all pairs, on each kind of device where that is asked for."""
    jobs = asked.where.jobs
    confinement = Confinement.of(asked.memory, jobs or default_jobs(place.device)) if asked.isolate else None
    if asked.per_device and (asked.resume or asked.history):
        raise BadInput("--per-device: not with --resume or --history, which hold one verdict on a case")
    runs: list[tuple[list[Verdict], Summary]] = []
    for kind in place.kinds() if asked.per_device else ("",):
        with place.engine(judge_one, jobs=jobs, timeout=limit, confinement=confinement, kind=kind) as workers:
            if isinstance(workers, Pool) and not asked.case:
                workers.start()  # while the cases are drawn
            keep: dict[str, Any] = {"resume": asked.resume, "settings": settings, "ledger": outputs.ledger}
            runs.append(judge(workers, pairs(), quiet=asked.quiet, **keep))
    return joined(runs)


def _tell(
    asked: Asked, command: list[str], outputs: Outputs, verdicts: list[Verdict], summary: Summary, device: str
) -> None:
    """The report, what is asked for of the failures, and the documents: those even if looking into a failure fails."""
    from ..reports.page import Attached
    from ..reports.table import report

    screen, attached = console(stderr=outputs.documents.owns_stdout), Attached()
    try:
        report(screen, verdicts, summary, failures_only=asked.quiet)
        if summary.exit_code == FAULT and outputs.bundles:
            causes.bundle(screen, outputs.bundles, verdicts, device)
        if summary.exit_code == FAULT and asked.diagnose:
            attached = Attached(diagnoses=causes.diagnose(screen, verdicts, device))
    finally:
        outputs.documents.write(command, summary, verdicts, attached=attached)
