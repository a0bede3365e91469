"""``attnoracle bisect``: from two ends that differ to the boundary between them, along one axis a command."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bisect.look import Look
from ..bisect.probe import Probe
from ..case import Case
from ..device import settle
from ..errors import BadInput
from . import bisect_options as given
from . import options
from .groups import grouped
from .released import Cache
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..bisect.axis import Axis
    from ..bisect.bisection import Found
    from ..replay.incident import Incident, Variant
    from ..replay.operators import Injected

app = typer.Typer(
    name="bisect",
    help="Find where a verdict changes: over commits, releases, sizes, knobs or stages. Good may be the newer end.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(short_help="Which commit changed the verdict.")
@grouped
def commits(
    context: typer.Context,
    good: given.Good,
    bad: given.Bad,
    repository: Annotated[Path, typer.Option("--repository", "-C", metavar="DIR", help="A git repository.")] = Path(),
    build: Annotated[str, typer.Option("--build", metavar="COMMAND", help="Run in each commit's work tree.")] = "",
    build_timeout: Annotated[
        float, typer.Option("--build-timeout", metavar="SECONDS", min=1, help="For one build; longer is a skip.")
    ] = 3600.0,
    path: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="DIR", help="Of the work tree, first on PYTHONPATH. Repeatable. [default: .]"),
    ] = None,
    all_parents: Annotated[bool, typer.Option("--all-parents", help="Commits of merged branches too.")] = False,
    *,
    search: given.Search,
) -> None:
    """Which commit changed the verdict; builds each in a work tree of its own, skips what cannot be built."""
    from ..bisect.commits import Commits

    probe = search.probe()
    with tempfile.TemporaryDirectory(prefix="attnoracle-bisect-") as folder:
        axis = Commits(
            Path(os.path.abspath(repository)),
            good,
            bad,
            probe,
            workdir=Path(folder).resolve() / "tree",
            build=build,
            build_timeout=build_timeout,
            pythonpath=tuple(path or (".",)),
            first_parent=not all_parents,
        )
        try:
            head = {"axis": "commits", "build": build}
            _search(context, axis, axis.good, axis.bad, probe, head, search, title=axis.title)
        finally:
            axis.close()


@app.command(short_help="Which release changed the verdict.")
@grouped
def packages(
    context: typer.Context,
    package: Annotated[list[str], typer.Argument(metavar="PACKAGE", help="On the index that pip uses.")],
    good: Annotated[list[str], typer.Option("--good", metavar="VERSION", help="Of each package, in their order.")],
    bad: Annotated[list[str], typer.Option("--bad", metavar="VERSION", help="Of each package, in their order.")],
    held: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME==VERSION", help="Installed beside. Repeatable.")
    ] = None,
    cache: Cache = None,
    *,
    search: given.Search,
) -> None:
    """Which release changed the verdict. Of several packages it first finds which of them matters."""
    from ..bisect.packages import Packages, culprits, default_cache, parse_pin

    probe = search.probe()
    if not len(package) == len(good) == len(bad):
        raise BadInput(
            f"bisect packages: expected one --good and one --bad for each of {len(package)} packages, "
            f"got {len(good)} and {len(bad)}"
        )
    folder = (cache or default_cache()).absolute()
    fixed = dict(map(parse_pin, held or ()))
    ends = {name: (one, other) for name, one, other in zip(package, good, bad, strict=True)}
    screen = console(stderr=True)
    matter = [*ends]
    if len(ends) > 1 and search.place.ray is not None:
        raise BadInput("bisect packages: on Ray name one package; which of several matters is asked here")
    if len(ends) > 1:
        matter = list(culprits(ends, fixed, probe, folder, lambda text: screen.print(text, soft_wrap=True)))
        screen.print(f"needed for the failure: {', '.join(matter)}", soft_wrap=True)
    for name in matter:
        others = {other: versions[1] for other, versions in ends.items() if other != name}
        axis = Packages(name, *ends[name], probe, cache=folder, held={**fixed, **others})
        head = {"axis": axis.name, "held": {**fixed, **others}}
        several, found = len(matter) > 1, search
        if several and search.journal is not None:
            found = replace(found, journal=search.journal / name)
        if several and search.json not in (None, "-"):
            found = replace(found, json=f"{search.json}.{name}")
        _search(context, axis, str(axis.good), str(axis.bad), probe, head, found)


@app.command(short_help="From which length, head count or top-k on a case fails.")
@grouped
def sizes(
    context: typer.Context,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="q, k, heads, topk or seed.")],
    good: given.Good,
    bad: given.Bad,
    request: Annotated[int, typer.Option("--request", metavar="N", min=0, help="Whose length, counted from 0.")] = 0,
    *,
    search: given.Search,
) -> None:
    """From which length, head count or top-k on a case fails (takes the failure to be monotone in it)."""
    from ..bisect.sizes import Sizes

    if search.case is None or search.run is not None:
        raise BadInput("bisect sizes: expected --case, the case whose size is varied, and no --run")
    probe = search.probe()
    for name, value in (("--good", good), ("--bad", bad)):
        if not value.isdecimal():
            raise BadInput(f"{name}: expected a whole number, got {value!r}")
    low, high = sorted((int(good), int(bad)))
    axis = Sizes(Case.parse(search.case), field, low, high, probe, request)
    _search(context, axis, str(int(good)), str(int(bad)), probe, {"axis": axis.name}, search)


@app.command(short_help="Which of many differences matters.")
def knobs(
    context: typer.Context,
    good: Annotated[list[str], typer.Option("--good", metavar="VARIANT", help="Or NAME=VALUE, repeatable.")],
    bad: Annotated[list[str], typer.Option("--bad", metavar="VARIANT", help="Or NAME=VALUE, repeatable.")],
    incident: Annotated[str | None, typer.Argument(metavar="INCIDENT", help="Like pr-52512.")] = None,
    length: Annotated[int, typer.Option("--length", metavar="TOKENS", min=27, help="Of the incident's prompt.")] = 257,
    case: given.Case = None,
    implementation: given.Implementation = None,
    impl: given.Impl = None,
    operator: given.Operator = None,
    contract: given.ContractFile = None,
    run: given.Run = None,
    timeout: given.Limit = 600.0,
    device: options.DeviceName = options.Device.cpu,
    engine: given.EngineName = options.EngineName.local,
    address: options.Address = None,
    jobs: given.Jobs = None,
    json: options.Json = None,
) -> None:
    """Which of many differences matters: an incident's rules and switches, or environment variables of a run."""
    import os

    from ..bisect import knobs as knob_axis
    from ..bisect.mixture import Mixture
    from ..reports import bisect_report

    given.refuse("knobs", "which set of knobs comes next depends on the last one", engine, address, jobs)
    check_target("--json", json)
    if incident is not None:
        chosen, operators, (one, other) = _incident(incident, good, bad)
        mixture = Mixture(chosen, operators)
        culprit = knob_axis.isolate(
            knob_axis.variant_knobs(one, other),
            lambda values: knob_axis.look_with(mixture, one, values, length),
            _told(),
        )
    else:
        where = settle(device) if case else "cpu"
        probe = given.probe(case, implementation, impl, operator, contract, run, None, None, timeout, where)
        culprit = knob_axis.isolate(
            knob_axis.environment_knobs(good, bad),
            lambda values: probe.look(cwd=None, env=knob_axis.with_values(os.environ, values), log=""),
            _told(),
        )
    record = bisect_report.culprit_record(culprit)
    _write(context, json, {"breaks": record["breaks"], "cures": record["cures"]}, [record], record.pop("looks"))
    bisect_report.report_culprit(console(stderr=json == "-"), culprit)


@app.command(short_help="Which stage of a layer makes the difference.")
def stages(
    context: typer.Context,
    incident: Annotated[str, typer.Argument(metavar="INCIDENT", help="Like pr-52512.")],
    good: given.Good,
    bad: given.Bad,
    length: Annotated[int, typer.Option("--length", metavar="TOKENS", min=27, help="Of the prompt.")] = 257,
    engine: given.EngineName = options.EngineName.local,
    address: options.Address = None,
    jobs: given.Jobs = None,
    json: options.Json = None,
) -> None:
    """Which stage of a layer: each is exchanged alone between a good and a bad variant of an incident."""
    from ..bisect.stages import localise
    from ..reports import bisect_report

    given.refuse("stages", "all looks share what one process has computed", engine, address, jobs)
    check_target("--json", json)
    chosen, operators, (one, other) = _incident(incident, [good], [bad])
    found = localise(chosen, operators, one, other, length, _told())
    records = [asdict(stage) | {"culprit": stage.culprit} for stage in found]
    _write(context, json, {"culprits": [stage.stage for stage in found if stage.culprit]}, records, [])
    bisect_report.report_stages(console(stderr=json == "-"), one.name, other.name, found)


def _incident(name: str, good: Sequence[str], bad: Sequence[str]) -> tuple[Incident, Injected, tuple[Variant, Variant]]:
    """The incident, its operators and its two variants. Raises BadInput for names that it has not."""
    from ..replay.incident import Incident, load_incident
    from ..replay.operators import injected

    chosen = load_incident(name)
    if not isinstance(chosen, Incident):
        raise BadInput(f"bisect: {name} is of kind {chosen.kind}; expected one that plays prompts, like pr-52512")
    if len(good) != 1 or len(bad) != 1:
        raise BadInput(f"bisect: expected one --good and one --bad variant of {name}, got {len(good)} and {len(bad)}")
    return chosen, injected("reference", "cpu"), (chosen.variant(good[0]), chosen.variant(bad[0]))


def _search(
    context: typer.Context,
    axis: Axis,
    good: str,
    bad: str,
    probe: Probe,
    head: Mapping[str, Any],
    search: given.Search,
    *,
    title: Callable[[str], str] = lambda point: "",
) -> None:
    from ..bisect.bisection import bisect
    from ..bisect.journal import Journal
    from ..records.verdict_json import finite
    from ..reports.bisect_report import report
    from ..reports.plain import plural

    settings, folder, json = search.settings, search.journal, search.json
    check_target("--json", json)
    screen = console(stderr=True)
    points = hashlib.sha256("\n".join(axis.points).encode()).hexdigest()[:16]
    record = {**head, "good": good, "bad": bad, "points": points, "probe": asdict(probe), "settings": asdict(settings)}
    journal = Journal(folder, finite(record))
    if journal.waiting:
        screen.print(f"going on from {folder}: {plural(journal.waiting, 'look')} there", soft_wrap=True)
    screen.print(f"{axis.name}: {plural(len(axis.points), 'point')}", soft_wrap=True)
    hands = search.hands()
    if hands is not None:
        screen.print(f"{plural(hands.slots, 'look')} at once", soft_wrap=True)
    found = bisect(axis, good, bad, journal, settings, _told(), hands)
    _document(context, found, json)
    report(console(stderr=json == "-"), found, title(found.first))


def _document(context: typer.Context, found: Found, json: str | None) -> None:
    from ..reports.bisect_report import found_record, step_records

    record = found_record(found)
    summary = {name: record[name] for name in ("axis", "direction", "last", "first", "confidence", "looks", "skipped")}
    _write(context, json, summary, [record], step_records(found))


def _write(
    context: typer.Context, json: str | None, summary: dict[str, Any], results: list[Any], steps: list[Any]
) -> None:
    if json is None:
        return
    from ..environment import environment
    from ..reports.json_report import document, dumps

    command = ["attnoracle", *(context.find_root().obj or ())]
    write(json, lambda: dumps(document("bisect", command, environment(), summary, results=results, steps=steps)))


def _told() -> Callable[[str, Look], None]:
    """Prints every look as it comes."""
    from ..reports.bisect_report import look_line

    screen = console(stderr=True)
    return lambda point, look: screen.print(look_line(point, look), soft_wrap=True)
