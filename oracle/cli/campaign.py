"""``attnoracle campaign``: a search with a budget, which goes on where the last one stopped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..campaign.scenes import is_own, is_scene, planted_in
from ..campaign.scenes import names as scene_names
from ..cause.named import FAULT, HIDDEN, operator_of
from ..config import names
from ..errors import BadInput, unknown
from ..fleet.confinement import TIMEOUT
from ..guests.known import TOO_SLOW
from . import guests, options
from .groups import Where, Which, grouped
from .selection import implementations
from .terminal import check_target, clean_stdout, console, write

if TYPE_CHECKING:
    from ..campaign.night import Night
    from ..records.ledger import Known

#: Queries and keys of a request where nobody says: what an interpreter does in a second, and a GPU too.
LARGEST = {"cpu": 200, "cuda": 4096}
#: Scores of a case at most (heads x queries x keys).
MOST = {"cpu": 1 << 17, "cuda": 1 << 30}
#: What a shell reports for a program that Ctrl-C ended.
INTERRUPTED = 130


class GuideName(StrEnum):
    coverage = "coverage"
    random = "random"


@grouped
def campaign(
    context: typer.Context,
    *,
    minutes: Annotated[
        float | None, typer.Option("--minutes", metavar="N", min=0.01, help="Stop after so long.")
    ] = None,
    cases: Annotated[int | None, typer.Option("--cases", metavar="N", min=1, help="Stop after so many cases.")] = None,
    corpus: Annotated[
        Path, typer.Option("--corpus", metavar="DIR", help="Where it goes on from, and what it leaves.")
    ] = Path("attnoracle-corpus"),
    which: Which,
    largest: Annotated[
        int | None, typer.Option("--largest", metavar="N", min=1, help="Longest request. [default: 200; 4096 on CUDA]")
    ] = None,
    guide: Annotated[
        GuideName, typer.Option("--guide", help="coverage: what was not seen, what came close; random: anything.")
    ] = GuideName.coverage,
    where: Where,
    timeout: options.Timeout = None,
    seed: options.Seed = 0,
    known: options.KnownFile = None,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Search the whole space of cases for a time, guided by what has not been seen and by what came closest.

    Failures are shrunk, bundled and diagnosed, each kind once. The next campaign on the same corpus goes on.
    """
    from ..campaign.corpus import Corpus
    from ..campaign.guide import Guide, Mode
    from ..campaign.night import Budget, Night
    from ..campaign.space import Space, fitting_here, usable
    from ..cause.again import judge
    from ..records.ledger import read as read_ledger
    from ..reports.campaign_live import live

    if minutes is None and cases is None:
        raise BadInput("campaign: expected --minutes N or --cases N, got neither")
    check_target("--json", json)
    check_target("--html", html)
    ledger = read_ledger(known) if known else ()
    place = where.place()
    geometries = guests.geometries(which.geometry)
    brought = which.brought()
    mine = guests.with_contracts(brought.admitted(), place.device) if brought else ()
    names = searched(which.names(mine), which.operator or ())
    fits = fitting_here(place.seen_from)
    most = largest or LARGEST[place.device], MOST[place.device]
    space = usable(Space(names, _geometries(geometries), *most), fits)
    budget = Budget(cases, None if minutes is None else 60.0 * minutes)
    limit = options.seconds(timeout) or TIMEOUT
    aside, interrupted = place.aside(), False
    with Corpus(corpus) as kept, place.engine(judge, jobs=where.jobs, timeout=limit, tries=3) as workers:
        settings = {"guide": guide.value, "seed": seed, "engine": place.name, "workers": workers.slots}
        mode = Mode(guide.value)
        night = Night(kept, Guide(space, seed, fits, mode), workers, aside, space.implementations)
        try:
            with live(console(stderr=True), budget, quiet=quiet) as watch, clean_stdout():
                night.run(budget, watch)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            aside.close()
            night.close(settings)
        code = _tell(night, ledger, settings, ["attnoracle", *context.obj], json, html)
    raise typer.Exit(INTERRUPTED if interrupted else code)


def _tell(
    night: Night,
    ledger: Sequence[Known],
    settings: dict[str, Any],
    command: Sequence[str],
    json: str | None,
    html: str | None,
) -> int:
    """Write the documents, print the report; returns the exit code."""
    from ..environment import environment
    from ..reports import campaign_report as reports
    from ..reports.json_report import dumps
    from ..reports.page import page

    findings = reports.told(night, ledger, datetime.now(UTC).date())
    numbers = reports.summary(night, findings, settings)
    write(json, lambda: dumps(reports.document(command, environment(), night, findings, numbers)))
    verdicts = [reports.smallest(one.finding) for one in findings]
    write(html, lambda: page(verdicts, reports.for_page(night, findings), environment(), command=command))
    reports.report(console(stderr="-" in (json, html)), night, findings, numbers)
    return reports.exit_code(night, findings)


def searched(patterns: Sequence[str], operators: Sequence[str]) -> tuple[str, ...]:
    """Names of implementations, and of planted faults where they are named (``fault:…``, ``hidden:…``)."""
    plain = [pattern for pattern in patterns if not pattern.startswith((FAULT, HIDDEN)) and not is_scene(pattern)]
    found: list[str] = []
    if plain or not patterns:
        found += [one.name for one in implementations(plain, operators, but=TOO_SLOW)]
    if not patterns and not operators:
        # The layers on interpreted kernels take seconds a step.
        found += [name for name in scene_names() if name != "graphs:triton"]
    for pattern in filter(is_scene, patterns):
        if is_own(pattern):
            planted_in(pattern)  # refused here where it does not import
            found.append(pattern)
            continue
        known = scene_names(planted=":fault:" in pattern)
        matches = [name for name in known if fnmatchcase(name, pattern)]
        if not matches:
            raise unknown("subject", pattern, known)
        found += [name for name in matches if not operators or name.partition(":")[0] in operators]
    for pattern in patterns:
        if pattern.startswith((FAULT, HIDDEN)):
            matches = [name for name in _planted(pattern) if fnmatchcase(name, pattern)]
            if not matches:
                raise unknown("planted fault", pattern, _planted(pattern))
            found += [name for name in matches if not operators or operator_of(name) in operators]
    if not found:
        raise BadInput("campaign: nothing to try: the chosen operators and implementations have nothing in common")
    return tuple(dict.fromkeys(found))


def _planted(pattern: str) -> list[str]:
    if pattern.startswith(HIDDEN):
        from ..faults.hidden import HIDDEN as hidden_faults

        return [HIDDEN + one.name for one in hidden_faults]
    from ..faults import FAULTS

    return [FAULT + one.name for one in FAULTS]


def _geometries(patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the geometries that match; all of them without a pattern."""
    found: list[str] = []
    for pattern in patterns or ("*",):
        matches = [name for name in names() if fnmatchcase(name, pattern)]
        if not matches:
            raise unknown("geometry", pattern, names())
        found += matches
    return tuple(dict.fromkeys(found))
