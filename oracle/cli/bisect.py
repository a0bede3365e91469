"""``attnoracle bisect``: from two ends that differ to the boundary between them, along one axis a command."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bisect.look import Settings
from ..bisect.probe import Probe
from ..case import Case
from ..errors import BadInput
from . import bisect_options as given
from . import options
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..bisect.bisection import Axis, Found

app = typer.Typer(
    name="bisect",
    help="Find where a verdict changes: over commits, releases or sizes. Good may be newer than bad: it finds the fix.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def commits(
    context: typer.Context,
    good: given.Good,
    bad: given.Bad,
    repository: Annotated[Path, typer.Option("--repository", "-C", metavar="DIR", help="A git repository.")] = Path(),
    build: Annotated[str, typer.Option("--build", metavar="COMMAND", help="Run in each commit's work tree.")] = "",
    build_timeout: Annotated[float, typer.Option("--build-timeout", metavar="SECONDS", min=1)] = 3600.0,
    path: Annotated[
        list[str] | None, typer.Option("--path", metavar="DIR", help="Of the work tree, first on PYTHONPATH. [.]")
    ] = None,
    all_parents: Annotated[bool, typer.Option("--all-parents", help="Commits of merged branches too.")] = False,
    case: given.Case = None,
    implementation: given.Implementation = None,
    impl: given.Impl = None,
    operator: given.Operator = None,
    contract: given.ContractFile = None,
    run: given.Run = None,
    measure: given.Measure = None,
    above: given.Above = None,
    runs: given.Runs = 2,
    flaky: given.Flaky = False,
    confidence: given.Confidence = 0.99,
    journal: given.JournalFolder = None,
    timeout: given.Limit = 600.0,
    device: options.DeviceName = options.Device.cpu,
    json: options.Json = None,
) -> None:
    """Which commit changed the verdict; builds each in a work tree of its own, skips what cannot be built."""
    from ..bisect.commits import Commits

    probe = given.probe(case, implementation, impl, operator, contract, run, measure, above, timeout, device)
    with tempfile.TemporaryDirectory(prefix="attnoracle-bisect-") as folder:
        axis = Commits(
            repository.absolute(),
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
            settings = Settings(runs=runs, flaky=flaky, confidence=confidence)
            head = {"axis": "commits", "build": build}
            _search(context, axis, axis.good, axis.bad, probe, head, settings, journal, json, axis.title)
        finally:
            axis.close()


@app.command()
def packages(
    context: typer.Context,
    package: Annotated[list[str], typer.Argument(metavar="PACKAGE…", help="On the index that pip uses.")],
    good: Annotated[list[str], typer.Option("--good", metavar="VERSION", help="Of each package, in their order.")],
    bad: Annotated[list[str], typer.Option("--bad", metavar="VERSION", help="Of each package, in their order.")],
    held: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME==VERSION", help="Installed beside. Repeatable.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keeps environments. [default: user's cache folder]")
    ] = None,
    case: given.Case = None,
    implementation: given.Implementation = None,
    impl: given.Impl = None,
    operator: given.Operator = None,
    contract: given.ContractFile = None,
    run: given.Run = None,
    measure: given.Measure = None,
    above: given.Above = None,
    runs: given.Runs = 2,
    flaky: given.Flaky = False,
    confidence: given.Confidence = 0.99,
    journal: given.JournalFolder = None,
    timeout: given.Limit = 600.0,
    device: options.DeviceName = options.Device.cpu,
    json: options.Json = None,
) -> None:
    """Which release changed the verdict. Of several packages it first finds which of them matters."""
    from ..bisect.packages import Packages, culprits, default_cache, parse_pin

    probe = given.probe(case, implementation, impl, operator, contract, run, measure, above, timeout, device)
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
    if len(ends) > 1:
        matter = list(culprits(ends, fixed, probe, folder, lambda text: screen.print(text, soft_wrap=True)))
        screen.print(f"needed for the failure: {', '.join(matter)}", soft_wrap=True)
    settings = Settings(runs=runs, flaky=flaky, confidence=confidence)
    for name in matter:
        others = {other: versions[1] for other, versions in ends.items() if other != name}
        axis = Packages(name, *ends[name], probe, cache=folder, held={**fixed, **others})
        head = {"axis": axis.name, "held": {**fixed, **others}}
        where = journal / name if journal is not None and len(matter) > 1 else journal
        target = json if len(matter) == 1 or json in (None, "-") else f"{json}.{name}"
        _search(context, axis, str(axis.good), str(axis.bad), probe, head, settings, where, target)


@app.command()
def sizes(
    context: typer.Context,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="q, k, heads, topk or seed.")],
    good: given.Good,
    bad: given.Bad,
    case: Annotated[str, typer.Option("--case", metavar="ID", help="The case whose size is varied.")],
    request: Annotated[int, typer.Option("--request", metavar="N", min=0, help="Whose length, counted from 0.")] = 0,
    implementation: given.Implementation = None,
    impl: given.Impl = None,
    operator: given.Operator = None,
    contract: given.ContractFile = None,
    measure: given.Measure = None,
    above: given.Above = None,
    runs: given.Runs = 1,
    flaky: given.Flaky = False,
    confidence: given.Confidence = 0.99,
    journal: given.JournalFolder = None,
    timeout: given.Limit = 600.0,
    device: options.DeviceName = options.Device.cpu,
    json: options.Json = None,
) -> None:
    """From which length, head count or top-k on a case fails (takes the failure to be monotone in it)."""
    from ..bisect.sizes import Sizes

    probe = given.probe(case, implementation, impl, operator, contract, None, measure, above, timeout, device)
    for name, value in (("--good", good), ("--bad", bad)):
        if not value.isdecimal():
            raise BadInput(f"{name}: expected a whole number, got {value!r}")
    low, high = sorted((int(good), int(bad)))
    axis = Sizes(Case.parse(case), field, low, high, probe, request)
    settings = Settings(runs=runs, flaky=flaky, confidence=confidence)
    _search(context, axis, str(int(good)), str(int(bad)), probe, {"axis": axis.name}, settings, journal, json)


def _search(
    context: typer.Context,
    axis: Axis,
    good: str,
    bad: str,
    probe: Probe,
    head: Mapping[str, Any],
    settings: Settings,
    folder: Path | None,
    json: str | None,
    title: Callable[[str], str] = lambda point: "",
) -> None:
    from ..bisect.bisection import bisect
    from ..bisect.journal import Journal
    from ..reports.bisect_report import look_line, report

    check_target("--json", json)
    screen = console(stderr=True)
    points = hashlib.sha256("\n".join(axis.points).encode()).hexdigest()[:16]
    record = {**head, "good": good, "bad": bad, "points": points, "probe": asdict(probe), "settings": asdict(settings)}
    journal = Journal(folder, _plain(record))
    if journal.waiting:
        screen.print(f"going on from {folder}: {journal.waiting} looks are there", soft_wrap=True)
    screen.print(f"{axis.name}: {len(axis.points)} points", soft_wrap=True)
    found = bisect(
        axis, good, bad, journal, settings, lambda point, look: screen.print(look_line(point, look), soft_wrap=True)
    )
    _document(context, found, json)
    report(console(stderr=json == "-"), found, title(found.first))


def _document(context: typer.Context, found: Found, json: str | None) -> None:
    if json is None:
        return
    from ..environment import environment
    from ..reports.bisect_report import found_record, step_records
    from ..reports.json_report import document, dumps

    root: Sequence[str] = context.find_root().obj or ()
    record = found_record(found)
    summary = {name: record[name] for name in ("axis", "direction", "last", "first", "confidence", "looks", "skipped")}
    command = ["attnoracle", *root]
    write(
        json,
        lambda: dumps(document("bisect", command, environment(), summary, results=[record], steps=step_records(found))),
    )


def _plain(value: Any) -> Any:
    """As JSON gives it back, so that a journal's head compares equal to itself."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
