"""``attnoracle audit``: the oracle judged by planted faults and by kernels known to be good."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadInput
from ..verdict import Verdict
from . import options
from .groups import WhereElseCpu, grouped
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..audit.result import Audit

_README = Path(__file__).resolve().parents[2] / "README.md"
_PAGE = _README.parent / "docs" / "properties.md"


@grouped
def audit(
    context: typer.Context,
    *,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", metavar="NAME", help="Like lse-base-2 or 'triton-*'. Repeatable.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Only faults that this check should kill. Repeatable."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One fault a theme and operator, 150 good runs.")] = False,
    good_runs: Annotated[
        int | None,
        typer.Option("--good-runs", metavar="N", min=0, help="Of right kernels. [default: 2100; 150 if quick]"),
    ] = None,
    properties: Annotated[
        bool,
        typer.Option("--properties", help="By properties alone, which know no right answer; 60 good runs."),
    ] = False,
    where: WhereElseCpu,
    seed: options.Seed = 0,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="FILE", help="Keep the state here; go on from it if it exists.")
    ] = None,
    json: options.Json = None,
    write_: Annotated[
        bool, typer.Option("--write", help="Write the audit file and its figures in README or docs (whole audits).")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Plant faults and see which checks kill them; run right kernels and see whether any is rejected."""
    from ..audit.journal import Journal
    from ..audit.plan import Settings, plan
    from ..audit.run import run
    from ..environment import environment
    from ..reports.audit_report import document, report
    from ..reports.json_report import dumps
    from ..reports.progress import progress

    check_target("--json", json)
    place = where.place()
    settings = Settings(tuple(fault or ()), tuple(check or ()), quick, seed, good_runs, place.device, properties)
    if write_ and not (settings.whole and _README.is_file()):
        raise BadInput("--write: takes a whole audit, in a checkout; leave out --quick, --fault and --check")
    planned = plan(settings)
    with (
        Journal(resume, settings) as journal,
        progress(console(stderr=True), len(journal.left(planned)), quiet=quiet) as advance,
        contextlib.redirect_stdout(sys.stderr),
    ):
        outcome = run(
            planned,
            settings,
            journal,
            workers=where.jobs,
            place=place,
            on_done=lambda verdict: advance(_as_wished(verdict)),
        )
    if properties:
        raise typer.Exit(_by_properties(["attnoracle", *context.obj], outcome, json, write_))
    write(json, lambda: dumps(document(["attnoracle", *context.obj], environment(), outcome)))
    report(console(stderr=json == "-"), outcome)
    if write_:
        from ..audit import committed, readme

        committed.FILE.write_text(committed.compact(outcome), encoding="utf-8")
        text = readme.updated(_README.read_text(encoding="utf-8"), committed.recorded())
        _README.write_text(text, encoding="utf-8")
    raise typer.Exit(outcome.exit_code)


def _by_properties(command: list[str], outcome: Audit, json: str | None, write_: bool) -> int:
    """Report and write what properties killed alone; the exit code."""
    from ..audit import properties_file
    from ..environment import environment
    from ..reports.json_report import dumps
    from ..reports.property_audit_report import document, report

    write(json, lambda: dumps(document(command, environment(), outcome)))
    report(console(stderr=json == "-"), outcome)
    code = properties_file.exit_code(outcome)
    if write_:
        properties_file.FILE.write_text(properties_file.compact(outcome), encoding="utf-8")
        text = properties_file.updated(_PAGE.read_text(encoding="utf-8"), properties_file.recorded())
        _PAGE.write_text(text, encoding="utf-8")
    return code


def _as_wished(verdict: Verdict) -> Verdict:
    """For the progress line, which counts failures: a fault fails by surviving."""
    from ..audit.trial import FAULT

    if not verdict.implementation.startswith(FAULT) or verdict.status == "UNSUPPORTED":
        return verdict
    return replace(verdict, status="PASS" if verdict.bad else "FAIL")
