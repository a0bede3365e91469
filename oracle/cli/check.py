"""``attnoracle check``: the differential matrix over operators, implementations and geometries."""

from __future__ import annotations

from pathlib import Path

import typer

from ..case import Case
from ..confinement import TIMEOUT, Confinement
from ..environment import environment
from ..errors import BadInput
from ..fleet.choose import Place
from ..history import add as add_to_history
from ..history import check_target as check_history
from ..ledger import read as read_ledger
from ..pool import Pool, default_jobs
from ..pool import judge as judge_one
from ..reports.summary import FAULT, Summary
from ..verdict import Verdict
from . import causes, guests, options
from .judging import Documents, joined, judge
from .properties import Wished, refuse, run_properties
from .sanitize import run_sanitizer
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
    engine: options.Engine = options.EngineName.local,
    address: options.Address = None,
    per_device: options.PerDevice = False,
    timeout: options.Timeout = None,
    isolate: options.Isolate = False,
    memory: options.Memory = None,
    resume: options.Resume = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    junit: options.JUnit = None,
    bundle: options.BundleFolder = None,
    diagnose: options.Diagnose = False,
    markdown: options.Markdown = None,
    html: options.Html = None,
    known: options.KnownFile = None,
    history: options.History = None,
    properties: options.Properties = False,
    sanitize: options.Sanitize = False,
    list_: options.List = False,
    quiet: options.Quiet = False,
) -> None:
    """Check implementations against the references."""
    if properties or sanitize:
        refused: dict[str, object] = {
            "jobs": jobs,
            "isolate": isolate,
            "memory": memory,
            "resume": resume,
            "junit": junit,
        }
        refused |= {"bundle": bundle, "diagnose": diagnose, "markdown": markdown, "html": html}
        refused |= {"known": known, "history": history, "suite": suite != options.Suite.quick}
        refused |= {"timeout": timeout} if properties else {"impl": impl, "list": list_, "geometry": geometry}
        refused |= {"sanitize": properties and sanitize, "engine": engine != options.EngineName.local}
        refuse("--properties" if properties else "--sanitize", refused)
    if memory is not None and not isolate:
        raise BadInput(f"--memory {memory:g}: goes with --isolate")
    limit = options.seconds(timeout) or (TIMEOUT if isolate else None)
    bundles = causes.check_folder(bundle)
    documents = Documents(json, junit, markdown, html)
    ledger = read_ledger(known) if known else ()
    if history:
        history = str(Path(history).absolute())
        check_history(history)
    slow = TOO_SLOW if suite == options.Suite.quick and not case else ()
    geometry = guests.geometries(geometry)
    brought = guests.Brought.of(impl, operator, contract, adapter)
    place = Place.of(engine.value, address, device) if brought or not list_ else None
    where = place.device if place else ""
    mine = guests.with_contracts(brought.admitted(), where) if brought else ()
    wanted = [*(implementation or ()), *(one.name for one in mine)]
    candidates = implementations(wanted, operator or (), but=slow)
    if properties or sanitize:
        wished = Wished(tuple(case or ()), tuple(geometry or ()), where or "cpu", seed, json, list_, quiet)
        if properties:
            raise typer.Exit(run_properties(context, candidates, wished))
        raise typer.Exit(run_sanitizer(context, candidates, wished, limit))
    if list_:
        pairs = pair(_cases(case, suite, seed, geometry), candidates)
        say("".join(f"{id_}\n" for id_ in dict.fromkeys(case.id for case, _ in pairs)))
        return
    assert place is not None
    confinement = Confinement.of(memory, jobs or default_jobs(where)) if isolate else None
    if per_device and (resume or history):
        raise BadInput("--per-device: not with --resume or --history, which hold one verdict on a case")
    runs: list[tuple[list[Verdict], Summary]] = []
    for kind in place.kinds() if per_device else ("",):
        with place.engine(judge_one, jobs=jobs, timeout=limit, confinement=confinement, kind=kind) as workers:
            if isinstance(workers, Pool) and not case:
                workers.start()
            pairs = pair(_cases(case, suite, seed, geometry), candidates)
            settings = {"device": where, "guests": {one.name: one.contract.as_dict() for one in mine}}
            runs.append(judge(workers, pairs, quiet=quiet, resume=resume, settings=settings, ledger=ledger))
    verdicts, summary = joined(runs)
    if history:
        add_to_history(history, environment(), verdicts)
    from ..reports.page import Attached
    from ..reports.table import report

    screen, attached = console(stderr=documents.owns_stdout), Attached()
    try:
        report(screen, verdicts, summary, failures_only=quiet)
        if summary.exit_code == FAULT and bundles:
            causes.bundle(screen, bundles, verdicts, where)
        if summary.exit_code == FAULT and diagnose:
            attached = Attached(diagnoses=causes.diagnose(screen, verdicts, where))
    finally:
        documents.write(["attnoracle", *context.obj], summary, verdicts, attached=attached)
    raise typer.Exit(summary.exit_code)


def _cases(ids: list[str] | None, suite: str, seed: int, geometries: list[str] | None) -> tuple[Case, ...]:
    if not ids:
        return suite_cases(suite, seed, geometries or ())
    cases = named_cases(ids, suggestions=lambda: suite_cases(suite, seed, ()))
    return among(cases, geometries or ())
