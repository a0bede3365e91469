"""``attnoracle compare``: two implementations, or two releases under one, on the same cases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..case import Case
from ..device import settle
from ..errors import BadInput
from ..fleet.pool import Pool, default_jobs
from ..reports.summary import FAULT, NOTHING, WELL
from . import options
from .judging import judge
from .released import Cache
from .selection import among_all, implementations, named_cases, pair, suite_cases
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..compare import Pair

_SIDE = "An implementation, or PACKAGE==VERSION with --implementation."


def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    b: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    implementation: Annotated[
        str | None, typer.Option("--implementation", "-i", metavar="NAME", help="What runs on both releases.")
    ] = None,
    geometry: options.Geometries = None,
    suite: options.SuiteName = options.Suite.quick,
    case: options.CaseIds = None,
    device: options.DeviceName = options.Device.auto,
    jobs: options.Jobs = None,
    seed: options.Seed = 0,
    cache: Cache = None,
    json: options.Json = None,
) -> None:
    """Say who of two is off, where, and by how much of the budget."""
    from ..environment import environment
    from ..reports import compare_report
    from ..reports.json_report import document, dumps

    check_target("--json", json)
    if ("==" in a) != ("==" in b):
        raise BadInput(f"compare: expected two implementations or two releases, got {a!r} and {b!r}")
    cases = Cases(suite, seed, tuple(case or ()), tuple(geometry or ()))
    if "==" in a:
        names, pairs = _releases(a, b, implementation, cases, device, cache)
    else:
        names, pairs = [a, b], _implementations(a, b, cases, device, jobs)
    summary = compare_report.summary(names, pairs)
    if json is not None:
        ratios = [compare_report.record(one) for one in pairs]
        command = ["attnoracle", *context.obj]
        write(json, lambda: dumps(document("compare", command, environment(), summary, ratios=ratios)))
    compare_report.report(console(stderr=json == "-"), names, pairs)
    off = any(one.outcome in ("a", "b", "both") for one in pairs)
    judged = any(one.outcome != "unjudged" for one in pairs)
    raise typer.Exit(FAULT if off else WELL if judged else NOTHING)


@dataclass(frozen=True, slots=True)
class Cases:
    """Which cases both sides get."""

    suite: options.Suite
    seed: int
    ids: tuple[str, ...]
    geometries: tuple[str, ...]

    def drawn(self) -> tuple[Case, ...]:
        """The cases named, or the suite's."""
        if not self.ids:
            return suite_cases(self.suite, self.seed, self.geometries)
        named = named_cases(self.ids, suggestions=lambda: suite_cases(self.suite, self.seed, ()))
        return among_all(named, self.geometries)

    def words(self) -> list[str]:
        """The options of ``check`` that draw the same."""
        given = [("--suite", self.suite.value), ("--seed", str(self.seed))]
        given += [("--geometry", name) for name in self.geometries] + [("--case", id_) for id_ in self.ids]
        return [word for option in given for word in option]


def _releases(
    a: str, b: str, implementation: str | None, cases: Cases, device: str, cache: Path | None
) -> tuple[list[str], list[Pair]]:
    """One implementation under two releases of a package, each in an environment of its own."""
    from ..bisect.packages import default_cache, parse_pin
    from ..compare import paired, released

    if implementation is None:
        raise BadInput("compare: two releases need --implementation, which runs on both")
    words = ["--implementation", implementation, *cases.words(), "--device", device]
    folder = (cache or default_cache()).absolute()
    records = [released(*parse_pin(pin), words, folder) for pin in (a, b)]
    return [f"{implementation} with {pin}" for pin in (a, b)], paired(*records)


def _implementations(a: str, b: str, cases: Cases, device: str, jobs: int | None) -> list[Pair]:
    """Two implementations here."""
    from ..compare import paired
    from ..records.verdict_json import verdict_record

    sides = [implementations([name]) for name in (a, b)]
    if any(len(side) != 1 for side in sides) or sides[0][0].operator != sides[1][0].operator or a == b:
        raise BadInput(f"compare: expected two different implementations of one operator, got {a!r} and {b!r}")
    both, drawn = [side[0] for side in sides], cases.drawn()
    where = settle(device)
    with Pool(jobs=jobs or default_jobs(where), device=where, apart=jobs is None) as pool:
        verdicts, _ = judge(pool, pair(drawn, both), quiet=False)
    return paired(*([verdict_record(one) for one in verdicts if one.implementation == name] for name in (a, b)))
