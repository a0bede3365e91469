"""``attnoracle doctor``: what this machine can run, and why it cannot run the rest."""

from __future__ import annotations

from typing import Annotated

import typer

from ..device import settle
from .check import Device
from .terminal import check_target, console, write


def doctor(
    context: typer.Context,
    device: Annotated[Device, typer.Option(help="auto: CUDA if there is any.")] = Device.auto,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write JSON; - is stdout.")] = None,
) -> None:
    """Say what this machine can run, and why not the rest."""
    from ...optimized.catalogue import IMPLEMENTATIONS
    from ..doctor import examine
    from ..reports.doctor_report import document, print_examination
    from ..reports.json_report import dumps

    check_target("--json", json)
    examination = examine(IMPLEMENTATIONS, device=settle(device))
    write(json, lambda: dumps(document(["attnoracle", *context.obj], examination)))
    print_examination(console(stderr=json == "-"), examination)
    raise typer.Exit(0 if examination.summary["supported"] else 2)
