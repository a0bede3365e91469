"""``attnoracle bringup``: from a new model's config to what it means, what it costs and how to check it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..device import settle
from . import options
from . import route_options as places
from .terminal import check_target, console, write

_NEWEST = "vllm-0.33"


def bringup(
    context: typer.Context,
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A config.json, a model folder, or a shipped name.")],
    rules: Annotated[str, typer.Option("--rules", metavar="NAME|FILE", help="Routing rules.")] = _NEWEST,
    sm: places.Family = 100,
    cache: places.CacheName = places.Cache.model,
    why: Annotated[bool, typer.Option("--why", help="The reason of every refusal.")] = False,
    write_: Annotated[
        str | None,
        typer.Option("--write", metavar="DIR", help="Write a suite for code of this model: tests, adapters."),
    ] = None,
    transformers: Annotated[
        bool, typer.Option("--transformers", help="Judge the model that transformers ships, stage by stage, instead.")
    ] = False,
    device: options.DeviceName = options.Device.cpu,
    json: options.Json = None,
) -> None:
    """Say what a model's config means, what is ambiguous in it, what it will run as, and what it costs."""
    from ..bringup import shipped, written
    from ..bringup.study import study
    from ..bringup.subject import open_subject
    from ..environment import environment
    from ..reports.bringup_report import print_shipped, print_study
    from ..reports.json_report import document, dumps
    from ..routes.setup import rules_named

    check_target("--json", json)
    subject, chosen = open_subject(config), rules_named(rules)
    if transformers:
        results = shipped.compare_small(subject)
        bad = [one for one in results if one.status == "FAIL"]
        told = {"transformers": shipped.version(), "stages": len(results), "failed": len(bad)}
        lists = {"stages": [asdict(one) for one in results]}
        write(json, lambda: dumps(document("bringup", ["attnoracle", *context.obj], environment(), told, **lists)))
        print_shipped(console(stderr=json == "-"), subject.geometry.name, shipped.version(), results)
        raise typer.Exit(1 if bad else 0)
    files = written.write(subject, chosen, Path(write_)) if write_ is not None else ()
    found = study(subject, chosen, family=sm, cache=cache.value, device=settle(device))
    command = ["attnoracle", *context.obj]
    write(
        json,
        lambda: dumps(
            document("bringup", command, environment(), {**found.summary, "written": files}, **found.lists())
        ),
    )
    people = console(stderr=json == "-")
    print_study(people, found, every=why)
    if write_ is not None:
        people.print(f"\nwritten to {write_}: {', '.join(files)}", soft_wrap=True)
        people.print(f"fill in adapters.py, then run: pytest {write_}", soft_wrap=True)
