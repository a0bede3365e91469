"""``attnoracle diagnose``: where the errors lie, which fault explains them, and at which stage they begin."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..device import settle
from ..errors import BadInput
from ..reports.summary import FAULT, NOTHING, WELL
from . import options, released
from .groups import OneKernel, grouped
from .repro import CaseOrBundle, is_bundle
from .selection import named_cases, suite_cases
from .terminal import check_target, console, write

if TYPE_CHECKING:
    from ..bundle import Bundle
    from ..diagnose import Diagnosis


@grouped
def diagnose(
    context: typer.Context,
    case: CaseOrBundle,
    *,
    kernel: OneKernel,
    device: options.DeviceName = options.Device.auto,
    stored: Annotated[
        bool, typer.Option("--stored", help="Of a bundle: diagnose the outputs in it, without running the kernel.")
    ] = False,
    held: released.With = None,
    cache: released.Cache = None,
    json: options.Json = None,
) -> None:
    """Say why a kernel is wrong on a case, or what a bundle's outputs tell.

    Exit code 1 if a fault was found, 0 if the kernel passes, 2 if it cannot run here.
    """
    if held:
        raise typer.Exit(released.run_with(context.obj, held, cache))
    from ..cause.named import named
    from ..diagnose import diagnose as find
    from ..reports.diagnose_report import document, report

    check_target("--json", json)
    where = settle(device)
    with contextlib.redirect_stdout(sys.stderr):
        if is_bundle(case):
            from ..bundle import kernel as of_bundle
            from ..bundle import read

            bundle = read(Path(case))
            which = bundle.case
            name = bundle.implementation
            if kernel.implementation or kernel.impl:
                name = kernel.name(which.operator, where, str(bundle.contract_path))
            if stored:
                found = _stored(bundle, where)
            else:
                make = of_bundle(bundle, name, command="diagnose")
                found = find(which, make, where, name=name)
        else:
            (which,) = named_cases([case], suggestions=lambda: suite_cases("quick", 0, ()))
            name = kernel.name(which.operator, where)
            found = find(which, named(name, which.operator), where, name=name)
    write(json, lambda: document(["attnoracle", *context.obj], found))
    report(console(stderr=json == "-"), found)
    status = found.verdict.status if found.verdict else "FAIL"
    raise typer.Exit(FAULT if status in ("FAIL", "ERROR") else WELL if status == "PASS" else NOTHING)


def _stored(bundle: Bundle, device: str) -> Diagnosis:
    from ..diagnose.diagnosis import diagnose_outputs

    if not bundle.outputs:
        raise BadInput(f"bundle {bundle.folder}: holds no outputs; leave out --stored to run the kernel")
    return diagnose_outputs(bundle.case, bundle.promised(), lambda: bundle.inputs(device), bundle.outputs)
