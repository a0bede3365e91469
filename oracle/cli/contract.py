"""``attnoracle contract``: proposes the contract of a kernel by probing it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from ..device import settle
from ..errors import BadInput
from . import guests, options
from .terminal import check_target, console, say, write

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="A callable of yours, my_pkg.kernels:mine, or a name like */triton.")
]
Operator = Annotated[str | None, typer.Option("--operator", metavar="NAME", help="What the callable computes.")]
Geometry = Annotated[str, typer.Option("--geometry", metavar="NAME", help="Model to probe on, or a config.json.")]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the contract there.")]


def contract(
    context: typer.Context,
    target: Target,
    operator: Operator = None,
    adapter: guests.Adapter = None,
    geometry: Geometry = "tiny",
    device: options.DeviceName = options.Device.auto,
    out: Out = None,
    json: options.Json = None,
) -> None:
    """Propose what a kernel promises, by probing it; what no probe settles is called unknown."""
    check_target("--out", out)
    check_target("--json", json)
    (geometry,) = guests.geometries([geometry])
    where = settle(device)
    from ..environment import environment
    from ..guests import known
    from ..guests.external import default_contract
    from ..guests.probing import proposed
    from ..reports.json_report import document, dumps

    if ":" in target:
        brought = guests.Brought.of([target], [operator] if operator else None, None, adapter)
        assert brought is not None
        (guest,) = brought.admitted()
        name, base = guest.name, guest.contract
    else:
        name, base = known.find(target).name, default_contract(target.partition("/")[0])
        if operator not in (None, name.partition("/")[0]):
            raise BadInput(f"--operator {operator}: {name} is of another")
    with redirect_stdout(sys.stderr):
        found = proposed(name, base, device=where, geometry=geometry)
    summary = {"settled": len(found.settled), "fields": len(found.notes), "dtypes": list(found.dtypes)}
    fields = [
        {"name": one, "value": value, "settled": one in found.settled, "evidence": found.notes[one]}
        for one, value in found.contract.as_dict().items()
        if one in found.notes
    ]
    command = ["attnoracle", *context.obj]
    write(json, lambda: dumps(document("contract", command, environment(), summary, fields=fields)))
    if out is None and json != "-":
        say(found.toml())
    else:
        write(out, found.toml)
    told = f"{name}: {len(found.settled)} of {len(found.notes)} fields settled"
    console(stderr=True).print(told, soft_wrap=True)
    raise typer.Exit(0 if found.dtypes else 2)
