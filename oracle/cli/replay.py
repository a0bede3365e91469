"""``attnoracle replay``: an incident from the field, step by step."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ..device import settle
from ..errors import BadInput
from . import options
from .terminal import check_target, console, say, write

if TYPE_CHECKING:
    from ..replay.play import Judged, Play


class Operators(StrEnum):
    reference = "reference"
    triton = "triton"
    flashinfer = "flashinfer"


Incident = Annotated[str | None, typer.Argument(metavar="INCIDENT", help="Like pr-52512.")]
Variants = Annotated[
    list[str] | None, typer.Option("--variant", metavar="NAME", help="Like faulty. Repeatable. [default: all]")
]
Lengths = Annotated[
    list[int] | None,
    typer.Option("--length", metavar="TOKENS", min=27, max=2049, help="Of a prompt. Repeatable. [default: all]"),
]
Implementations = Annotated[Operators, typer.Option("--implementations", help="The operators inside the layers.")]
Quick = Annotated[bool, typer.Option("--quick", help="A few lengths, all variants.")]
List = Annotated[bool, typer.Option("--list", help="Print the incidents, or the variants of the one named, and stop.")]
All = Annotated[bool, typer.Option("--all", help="Every incident; those of prompts as with --quick.")]


def replay(
    context: typer.Context,
    incident: Incident = None,
    variant: Variants = None,
    length: Lengths = None,
    quick: Quick = False,
    all_: All = False,
    device: options.DeviceName = options.Device.cpu,
    jobs: options.Jobs = None,
    implementations: Implementations = Operators.reference,
    json: options.Json = None,
    list_: List = False,
) -> None:
    """Replay an incident: the faulty variants must fail as they did, the cures must not."""
    from ..fleet.pool import default_jobs
    from ..replay.incident import incidents, load_incident
    from ..replay.play import prepare

    if list_:
        _list(incident)
        return
    if all_ and (incident or variant or length):
        raise BadInput("replay --all: expected no incident, --variant or --length beside it")
    if not all_ and incident is None:
        raise BadInput(f"replay: expected an incident or --all, got none; known: {', '.join(incidents())}")
    names = incidents() if incident is None else (incident,)
    check_target("--json", json)
    chosen = [load_incident(name) for name in names]
    where = settle(device)
    plays = [
        prepare(
            one,
            variants=variant or (),
            lengths=length or (),
            quick=quick or all_,
            operators=implementations,
            device=where,
            workers=jobs or default_jobs(where),
        )
        for one in chosen
    ]
    raise typer.Exit(_run(context, plays, json))


def _run(context: typer.Context, plays: list[Play], json: str | None) -> int:
    from ..environment import environment
    from ..reports import replay_report
    from ..reports.json_report import document, dumps
    from ..reports.progress import progress

    started = time.monotonic()
    played: list[tuple[Play, list[Judged], float]] = []
    with progress(console(stderr=True), sum(play.total for play in plays)) as advance:
        for play in plays:
            begun = time.monotonic()
            found = []
            for one in play.run():
                found.append(one)
                advance(replay_report.Advance("PASS" if one.met else "FAIL"))
            played.append((play, found, time.monotonic() - begun))
    seconds = time.monotonic() - started
    seen = [(play.incident.name, one) for play, found, _ in played for one in found]
    if json is not None:
        summary = replay_report.summary_record(seen, seconds)
        steps = [replay_report.step_record(*one) for one in seen]
        command = ["attnoracle", *context.obj]
        write(json, lambda: dumps(document("replay", command, environment(), summary, steps=steps)))
    screen = console(stderr=json == "-")
    if len(plays) == 1:
        replay_report.report(screen, plays[0].incident, played[0][1], seconds)
    else:
        replay_report.report_all(screen, [(play.incident, found, taken) for play, found, taken in played], seconds)
    return 0 if all(one.met for _, one in seen) else 1


def _list(incident: str | None) -> None:
    from ..replay.incident import incidents, load_incident

    if incident is not None:
        known = load_incident(incident)
        say("".join(f"{incident} {one.name}: {one.what}\n" for one in known.variants))
        return
    for name in incidents():
        known = load_incident(name)
        sources = ", ".join(source.partition(":")[0] for source in known.sources)
        say(f"{name}: {known.title}\n    {sources}\n")
