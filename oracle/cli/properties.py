"""``attnoracle check --properties``: relations between answers of one implementation, without a reference."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import typer

from ..case import Case
from ..config import load, names
from ..environment import environment
from ..errors import BadInput, unknown
from ..reports.json_report import dumps
from .selection import among, named_cases
from .terminal import check_target, clean_stdout, console, say, write


def refuse(option: str, taken: Mapping[str, Any], why: str = "it has small cases of its own") -> None:
    """Raises BadInput for options of ``check`` that do not go with this one."""
    given = [f"--{name.replace('_', '-')}" for name, value in taken.items() if value]
    if given:
        raise BadInput(f"{option}: does not go with {', '.join(given)}; {why}")


def matching(patterns: Sequence[str]) -> list[str]:
    """Names of the geometries that match. Raises BadInput with the nearest names for a pattern that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names()):
            raise unknown("geometry", pattern, names())
    return [name for name in names() if any(fnmatchcase(name, pattern) for pattern in patterns)]


@dataclass(frozen=True, slots=True)
class Wished:
    """What the command line asks for."""

    ids: tuple[str, ...]
    geometries: tuple[str, ...]
    device: str
    seed: int
    json: str | None
    listing: bool
    quiet: bool


def run_properties(context: typer.Context, candidates: Sequence[Any], wished: Wished) -> int:
    """Run, report and return the exit code. ``candidates``: implementations."""
    from ..facts import facts
    from ..properties.call import Call
    from ..properties.cases import cases_for, property_cases
    from ..properties.property import Outcome
    from ..properties.run import hold
    from ..properties.table import PROPERTIES
    from ..reports.progress import progress
    from ..reports.properties_report import document, exit_code, listing, report

    if wished.listing:
        say(listing())
        return 0
    check_target("--json", wished.json)
    started = time.monotonic()
    geometries = matching(wished.geometries)
    named = among(named_cases(wished.ids, suggestions=lambda: ()), wished.geometries) if wished.ids else ()
    outcomes: list[Outcome] = []
    unsupported: list[tuple[str, str]] = []

    def cases_of(one: Any) -> Iterator[Case]:
        known = named or cases_for(one, wished.device, wished.seed) or property_cases(one.operator)[:1]
        if geometries and not named:
            small = property_cases(one.operator)
            known = tuple(replace(case, geometry=geometry) for geometry in geometries for case in small)
        for case in known:
            if case.operator == one.operator:
                yield case

    pairs: list[tuple[Case, Any]] = []
    for one in candidates:
        reasons: list[str] = []
        for case in cases_of(one):
            reason = one.supports(facts(case, load(case.geometry), wished.device))
            reasons += [] if reason is None else [reason]
            pairs += [(case, one)] if reason is None else []
        if reasons and all(other is not one for _, other in pairs):
            unsupported.append((one.name, reasons[0]))
    screen = console(stderr=wished.json == "-")
    total = len(pairs) * len(PROPERTIES)
    with progress(console(stderr=True), total, quiet=wished.quiet) as advance, clean_stdout():
        for case, one in pairs:
            for outcome in hold(case, one, wished.device):
                outcomes.append(outcome)
                advance(outcome)
    seconds = time.monotonic() - started
    invariant = [one.name for case, one in pairs if Call(case, one, wished.device).invariant]
    write(
        wished.json, lambda: dumps(document(["attnoracle", *context.obj], environment(), outcomes, seconds, invariant))
    )
    report(screen, outcomes, unsupported, seconds, invariant=invariant, quiet=wished.quiet)
    return exit_code(outcomes)
