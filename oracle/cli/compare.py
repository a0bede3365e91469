"""``attnoracle compare``: two implementations, or two releases under one, on the same cases."""

from __future__ import annotations

from typing import Annotated

import typer

from ..device import settle
from ..errors import BadInput
from ..fleet.pool import Pool, default_jobs
from . import options
from .judging import judge
from .released import Cache
from .selection import among_all, implementations, named_cases, pair, suite_cases
from .terminal import check_target, console, write

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
    from ..compare import paired, released
    from ..environment import environment
    from ..reports import compare_report
    from ..reports.json_report import document, dumps, verdict_record

    check_target("--json", json)
    if ("==" in a) != ("==" in b):
        raise BadInput(f"compare: expected two implementations or two releases, got {a!r} and {b!r}")
    if "==" in a:
        from ..bisect.packages import default_cache, parse_pin

        if implementation is None:
            raise BadInput("compare: two releases need --implementation, which runs on both")
        given = [("--suite", suite.value), ("--seed", str(seed)), ("--device", device.value)]
        given += [("--geometry", name) for name in geometry or ()] + [("--case", id_) for id_ in case or ()]
        arguments = ["--implementation", implementation, *(part for option in given for part in option)]
        folder = (cache or default_cache()).absolute()
        pairs = paired(*(released(*parse_pin(pin), arguments, folder) for pin in (a, b)))
        names = [f"{implementation} with {pin}" for pin in (a, b)]
    else:
        sides = [implementations([name]) for name in (a, b)]
        if any(len(side) != 1 for side in sides) or sides[0][0].operator != sides[1][0].operator or a == b:
            raise BadInput(f"compare: expected two different implementations of one operator, got {a!r} and {b!r}")
        if case:
            cases = among_all(named_cases(case, suggestions=lambda: suite_cases(suite, seed, ())), geometry or ())
        else:
            cases = suite_cases(suite, seed, geometry or ())
        where = settle(device)
        with Pool(jobs=jobs or default_jobs(where), device=where, apart=jobs is None) as pool:
            verdicts, _ = judge(pool, pair(cases, [side[0] for side in sides]), quiet=False)
        records = [[verdict_record(one) for one in verdicts if one.implementation == name] for name in (a, b)]
        pairs, names = paired(*records), [a, b]
    summary = compare_report.summary(names, pairs)
    if json is not None:
        ratios = [compare_report.record(one) for one in pairs]
        command = ["attnoracle", *context.obj]
        write(json, lambda: dumps(document("compare", command, environment(), summary, ratios=ratios)))
    compare_report.report(console(stderr=json == "-"), names, pairs)
    off = sum(one.outcome in ("a", "b", "both") for one in pairs)
    judged = sum(one.outcome != "unjudged" for one in pairs)
    raise typer.Exit(1 if off else 0 if judged else 2)
