"""``attnoracle check``: the differential matrix over operators, implementations and geometries."""

from __future__ import annotations

import typer

from ..case import Case
from ..device import settle
from ..errors import BadInput
from ..pool import Pool, default_jobs
from . import guests, options
from .judging import Documents, judge
from .selection import among, implementations, named_cases, pair, suite_cases
from .terminal import console, say

#: Left out of the quick suite unless named: FlexAttention compiles every shape anew, seconds each on a CPU.
TOO_SLOW = ("masked_mha/flex",)


def check(
    context: typer.Context,
    operator: options.Operators = None,
    implementation: options.Implementations = None,
    impl: guests.Impl = None,
    contract: guests.Contract = None,
    adapter: guests.Adapter = None,
    geometry: options.Geometries = None,
    suite: options.SuiteName = options.Suite.quick,
    case: options.CaseIds = None,
    device: options.DeviceName = options.Device.auto,
    jobs: options.Jobs = None,
    timeout: options.Timeout = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    junit: options.JUnit = None,
    list_: options.List = False,
    quiet: options.Quiet = False,
) -> None:
    """Check implementations against the references."""
    if json == "-" and junit == "-":
        raise BadInput("--json - and --junit -: stdout takes one document; name a file for the other")
    documents = Documents(json, junit)
    slow = TOO_SLOW if suite == options.Suite.quick and not case else ()
    geometry = guests.geometries(geometry)
    brought = guests.Brought.of(impl, operator, contract, adapter)
    where = settle(device) if brought or not list_ else ""
    mine = brought.admitted() if brought else ()
    wanted = [*(implementation or ()), *(one.name for one in mine)]
    candidates = implementations(wanted, operator or (), but=slow)
    if list_:
        pairs = pair(_cases(case, suite, seed, geometry), candidates)
        say("".join(f"{id_}\n" for id_ in dict.fromkeys(case.id for case, _ in pairs)))
        return
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
