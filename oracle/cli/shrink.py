"""``attnoracle shrink``: the smallest case that fails in the same way."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..case import Case
from ..device import settle
from ..guests import known
from ..reports.summary import WELL
from ..verdict import Verdict
from . import options
from .groups import OneKernel, grouped
from .selection import named_cases, suite_cases
from .terminal import check_target, console, write

Sequence_ = Annotated[bool, typer.Option("--sequence", help="Call it again on the same memory, too.")]


@grouped
def shrink(
    context: typer.Context,
    case: options.CaseId,
    *,
    kernel: OneKernel,
    device: options.DeviceName = options.Device.auto,
    sequence: Sequence_ = False,
    flaky: Annotated[
        bool, typer.Option("--flaky", help="It fails now and then: measure how often, and repeat runs.")
    ] = False,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence", metavar="P", min=0.5, max=0.999999, help="That no smaller case was given up wrongly."
        ),
    ] = 0.99,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1.0, help="Stop looking after this time.")
    ] = 120.0,
    timeout: options.Timeout = None,
    bundle: Annotated[str | None, typer.Option("--bundle", metavar="DIR", help="Write the result there.")] = None,
    json: options.Json = None,
) -> None:
    """Find the smallest case that fails in the same way.

    With --timeout every run has a process of its own, which may die or hang.
    """
    from ..cause.again import fails_later
    from ..reports.shrink_report import document, report
    from ..shrink import Trials
    from ..shrink import shrink as find

    check_target("--json", json)
    (start,) = named_cases([case], suggestions=lambda: suite_cases("quick", 0, ()))
    where = settle(device)
    implementation = kernel.name(start.operator, where)
    with runs(implementation, start, where, timeout, True) as run, contextlib.redirect_stdout(sys.stderr):
        sequence = sequence or fails_later(run(start))
    with runs(implementation, start, where, timeout, sequence) as run, contextlib.redirect_stdout(sys.stderr):
        found = find(start, Trials(run, confidence), flaky=flaky, most_seconds=seconds)
    write(json, lambda: document(["attnoracle", *context.obj], found))
    report(console(stderr=json == "-"), found, fixture=known.shipped(implementation), sequence=sequence)
    if bundle is not None:
        from ..bundle import write as write_bundle
        from ..cause.named import named

        made = named(implementation, start.operator)()
        write_bundle(Path(bundle), found.verdict, made, sequence=sequence, original=start.id)
        console(stderr=json == "-").print(f"bundle: {bundle}", soft_wrap=True)
    raise typer.Exit(WELL)


@contextmanager
def runs(
    name: str, case: Case, device: str, timeout: float | None, sequence: bool
) -> Iterator[Callable[[Case], Verdict]]:
    """Runs of an implementation, here or in processes of their own; verdicts bear the name it was asked for by."""
    from dataclasses import replace

    from ..cause.again import apart, here
    from ..cause.named import named

    make = named(name, case.operator)
    if timeout is None:
        run = here(make, device, sequence=sequence)
        yield lambda smaller: replace(run(smaller), implementation=name)
    else:
        with apart(name, device, timeout, sequence=sequence) as spread:
            # A worker that died was asked for another name where the calls go on in sequence.
            yield lambda smaller: replace(
                spread(smaller), implementation=name, origin=known.origin(smaller.geometry, name)
            )
