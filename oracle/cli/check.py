"""``attnoracle check``: the differential matrix over operators, implementations and geometries."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ..case import Case
from ..device import settle
from ..errors import BadInput
from ..pool import Pool, default_jobs
from .judging import Documents, judge
from .selection import among, implementations, named_cases, pair, suite_cases
from .terminal import console, say


class Suite(StrEnum):
    quick = "quick"
    full = "full"
    production = "production"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def check(
    context: typer.Context,
    operator: Annotated[list[str] | None, typer.Option(help="Operator, or a pattern like '*_mha'. Repeatable.")] = None,
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", "-i", help="Name or pattern, like '*/triton'. Repeatable.")
    ] = None,
    geometry: Annotated[list[str] | None, typer.Option(help="Model, or a pattern like 'glm-*'. Repeatable.")] = None,
    suite: Annotated[Suite, typer.Option(help="Which cases.")] = Suite.quick,
    case: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="This case instead of a suite. Repeatable.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto: CUDA if there is any.")] = Device.auto,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Worker processes; default: the CPUs, up to 8; 1 on CUDA.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="For one check; a longer one is an ERROR.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the suite.")] = 0,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write JSON; - is stdout.")] = None,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write JUnit XML; - is stdout.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the ids of the cases and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only failures and the last line.")] = False,
) -> None:
    """Check implementations against the references."""
    if json == "-" and junit == "-":
        raise BadInput("--json - and --junit -: stdout takes one document; name a file for the other")
    documents = Documents(json, junit)
    candidates = implementations(implementation or (), operator or ())
    if list_:
        pairs = pair(_cases(case, suite, seed, geometry), candidates)
        say("".join(f"{id_}\n" for id_ in dict.fromkeys(case.id for case, _ in pairs)))
        return
    where = settle(device)
    with Pool(jobs=jobs or default_jobs(where), device=where, timeout=timeout) as pool:
        if not case:
            pool.start()
        pairs = pair(_cases(case, suite, seed, geometry), candidates)
        verdicts, summary = judge(pool, pairs, quiet=quiet)
    documents.write(["attnoracle", *context.obj], summary, verdicts)
    from ..reports.table import report

    report(console(stderr=documents.owns_stdout), verdicts, summary, failures_only=quiet)
    raise typer.Exit(summary.exit_code)


def _cases(ids: list[str] | None, suite: str, seed: int, geometries: list[str] | None) -> tuple[Case, ...]:
    if not ids:
        return suite_cases(suite, seed, geometries or ())
    cases = named_cases(ids, suggestions=lambda: suite_cases(suite, seed, ()))
    return among(cases, geometries or ())
