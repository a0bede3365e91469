"""``attnoracle replay``: an incident from the field, step by step."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from ..device import settle
from ..errors import BadInput
from . import options
from .terminal import check_target, console, say, write


class Operators(StrEnum):
    reference = "reference"
    triton = "triton"


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
List = Annotated[bool, typer.Option("--list", help="Print the incidents and their variants and stop.")]


def replay(
    context: typer.Context,
    incident: Incident = None,
    variant: Variants = None,
    length: Lengths = None,
    quick: Quick = False,
    device: options.DeviceName = options.Device.cpu,
    implementations: Implementations = Operators.reference,
    json: options.Json = None,
    list_: List = False,
) -> None:
    """Replay an incident: the faulty variants must fail as they did, the cures must not."""
    from ..replay.incident import incidents, load_incident

    if list_:
        for name in [incident] if incident else incidents():
            known = load_incident(name)
            say("".join(f"{name} {one.name}: {one.what}\n" for one in known.variants))
        return
    if incident is None:
        raise BadInput(f"replay: expected an incident, got none; known: {', '.join(incidents())}")
    chosen = load_incident(incident)
    variants = [chosen.variant(name) for name in dict.fromkeys(variant or ())] or list(chosen.variants)
    lengths = sorted(set(length or (chosen.quick_lengths if quick else chosen.lengths)))
    check_target("--json", json)
    where = settle(device)
    from ..environment import environment
    from ..replay.operators import injected
    from ..replay.replay import Replay
    from ..reports import replay_report
    from ..reports.json_report import document, dumps

    started = time.monotonic()
    seen = list(Replay(chosen, injected(implementations, where), where).run(variants, lengths))
    seconds = time.monotonic() - started
    if json is not None:
        summary, steps = replay_report.summary_record(seen, seconds), [*map(replay_report.step_record, seen)]
        command = ["attnoracle", *context.obj]
        write(json, lambda: dumps(document("replay", command, environment(), summary, steps=steps)))
    replay_report.report(console(stderr=json == "-"), chosen, seen, seconds)
    raise typer.Exit(0 if all(one.met for one in seen) else 1)
