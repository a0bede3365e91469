"""``attnoracle doctor``: what this machine can run, and why it cannot run the rest."""

from __future__ import annotations

import typer

from ..device import settle
from . import options
from .terminal import check_target, console, write


def doctor(
    context: typer.Context,
    device: options.DeviceName = options.Device.auto,
    json: options.Json = None,
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
